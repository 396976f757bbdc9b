"""``python -m torchgraph.oneflow``: what Python itself does with a script, and its children."""

import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HELPER = "def halved(x):\n    return (x // 2).tolist()\n"


def done(folder, *arguments: str, given=None):
    return subprocess.run(
        [sys.executable, "-m", "torchgraph.oneflow", *arguments],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        input=given,
        text=True,
        timeout=120,
    )


def test_children_of_multiprocessing_speak_oneflow(tmp_path):
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "script.py").write_text(
        "import multiprocessing as mp\n"
        "import oneflow as flow\n"
        "import helper\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'forkserver', 'fork'):\n"
        "        with mp.get_context(method).Pool(1) as pool:\n"
        "            print(pool.map(helper.halved, [flow.tensor([-3])]))\n"
    )
    found = done(tmp_path, "script.py")
    assert found.stdout.splitlines() == ["[[-1]]"] * 3, found.stderr


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import click; raise click.UsageError('mine')", 1, "click.exceptions.UsageError"),
    ],
)
def test_a_script_ends_as_under_python(tmp_path, text, code, said):
    (tmp_path / "script.py").write_text(text)
    found = done(tmp_path, "script.py", given="")
    assert found.returncode == code
    assert said in found.stderr
    assert "click/core.py" not in found.stderr


def test_a_missing_script_is_said_in_a_line(tmp_path):
    found = done(tmp_path, "none.py")
    assert found.returncode == 2
    assert "there is no file 'none.py'" in found.stderr


SPEAKS = "import oneflow as flow, helper\nprint(helper.halved(flow.tensor([-3])))\n"


@pytest.mark.parametrize("form", ["-", "zip"])
def test_standard_input_and_zip_files(tmp_path, form):
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "__main__.py").write_text(SPEAKS)
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        for one in folder.iterdir():
            archive.write(one, one.name)
    script, where = ("-", folder) if form == "-" else ("app.pyz", tmp_path)
    found = done(where, script, given=SPEAKS)
    assert found.stdout == "[-1]\n", found.stderr


def test_who_speaks_in_a_script(tmp_path):
    """Code of text does where its script does; a user's libraries do not; the module stays."""
    (tmp_path / "helper.py").write_text(
        f"import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: object\n{HELPER}"
    )
    library = tmp_path / "lib" / "site-packages"
    library.mkdir(parents=True)
    (library / "a_library.py").write_text(HELPER)
    (tmp_path / "script.py").write_text(
        "import oneflow as flow, helper, sys, atexit, pickle\n"
        "x = flow.tensor([-3])\n"
        "exec('print((x // 2).tolist())', {'x': x})\n"
        "exec('print((x // 2).tolist())', {'x': x, '__name__': 'a_config'})\n"
        "helper.A(flow.tensor(1)) == helper.A(flow.tensor(1))\n"  # code of dataclasses runs first
        "print(helper.halved(x))\n"
        "sys.path.append('lib/site-packages')\n"
        "import a_library\n"
        "print(a_library.halved(flow.tensor([-3])))\n"
        "class B: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(B()))).__name__))\n"
    )
    found = done(tmp_path, "script.py")
    assert found.stdout.splitlines() == ["[-1]", "[-1]", "[-1]", "[-2]", "B"], found.stderr
