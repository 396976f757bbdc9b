"""``python -m torchgraph.oneflow``: a script's errors and its command line stay its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def say(*arguments: str):
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


SPAWNS = """
import oneflow as flow
from oneflow.utils.data import DataLoader

class Halves(flow.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return flow.tensor([-3 - 2 * i], device=flow.device("cuda")) // 2

if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Halves(), 2, num_workers=1, multiprocessing_context=how)
        print([batch.tolist() for batch in loader])
"""


def test_workers_that_are_spawned_run_scripts_for_oneflow(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWNS)
    done = say("--cpu", str(script))
    assert done.stdout == "[[[-1], [-2]]]\n" * 3, done.stderr  # `//` truncates
