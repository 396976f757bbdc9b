"""``python -m torchgraph.oneflow``: a script's errors and its command line stay its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def say(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "torchgraph.oneflow", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("error", ["EOFError", "KeyboardInterrupt"])
def test_an_error_of_the_script_is_shown_where_it_was_raised(error, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"def load():\n    raise {error}('of it')\n\nload()\n")
    done = say(str(script))
    assert f'{script}", line 2, in load' in done.stderr
    assert f"{error}: of it" in done.stderr
    assert "click" not in done.stderr
    assert done.returncode != 0


def test_a_file_that_is_not_there(tmp_path):
    done = say(str(tmp_path / "no.py"))
    assert done.stderr == f"Error: There is no file {tmp_path / 'no.py'}.\n"
    assert done.returncode == 2
