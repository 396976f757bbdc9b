"""``python -m torchgraph.oneflow``: a script's errors and its command line stay its own."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def say(*arguments: str, cwd=ROOT, given=""):
    return subprocess.run(
        [sys.executable, "-m", "torchgraph.oneflow", *arguments],
        cwd=cwd,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        input=given,
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


ALIASED = """
import sys
import torchgraph.oneflow
sys.modules["oneflow"] = torchgraph.oneflow
import oneflow.nn.functional as functional
import oneflow.unittest
from oneflow import nn
from oneflow.nn import graph

assert nn is torchgraph.oneflow.nn and functional is nn.functional and graph is nn.graph
assert oneflow is torchgraph.oneflow and nn.__spec__ is None
print((oneflow.tensor([-3]) // 2).tolist())
try:
    import oneflow.one_embeddings
except ImportError as error:
    print(error)
"""


def test_the_package_may_stand_for_oneflow_by_a_line_of_the_script(tmp_path):
    script = tmp_path / "test_it.py"
    script.write_text(ALIASED)
    done = subprocess.run(
        [sys.executable, script],
        env={"PATH": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.startswith("[-1]\noneflow.one_embeddings is no name of OneFlow")
    assert not done.stderr


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


HELPER = "def halved(x):\n    return (x // 2).tolist()\n"
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
    found = say(script, cwd=where, given=SPEAKS)
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
    found = say("script.py", cwd=tmp_path)
    assert found.stdout.splitlines() == ["[-1]", "[-1]", "[-1]", "[-2]", "B"], found.stderr
