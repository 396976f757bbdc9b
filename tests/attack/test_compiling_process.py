"""The process that compiles: what it imports, its priority, its end, and the folders it leaves."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from torchgraph.lower.inductor.cache import scratch
from torchgraph.lower.inductor.cache.scratch import Scratch
from torchgraph.lower.inductor.process import compiler, imports, priority
from torchgraph.lower.inductor.process.compiler import Compiler

PROBE = """
import importlib, json, os, site, sys

def main(order):
    found = {}
    for name in ("json", "select", "signal", "threading", "inspect", "torch", "torchgraph", "rich"):
        found[name] = os.path.realpath(importlib.import_module(name).__file__ or "")
    found["path"], found["user"] = sys.path, site.ENABLE_USER_SITE
    with open(os.path.join(os.path.dirname(order), "found"), "w") as file:
        json.dump(found, file)
"""
TRAP = "import pathlib\npathlib.Path({marker!r}).touch()\n"
SHADOWED = ("json", "select", "signal", "threading", "inspect", "importlib", "torch", "rich")


def probed(tmp_path: Path, *, idle: bool = True) -> tuple[Compiler, Path]:
    """A process like the one that compiles, which says what it imported."""
    modules = tmp_path / "modules"
    modules.mkdir(mode=0o755)
    (modules / "probe.py").write_text(PROBE, encoding="utf-8")
    sys.path.append(str(modules))
    try:
        made = Compiler("probe", {}, Scratch(tmp_path), idle=idle, threads=1)
    finally:
        sys.path.remove(str(modules))
    return made, made.folder / "found"


def traps(folder: Path, marker: Path) -> None:
    """Modules that leave a mark when somebody imports them."""
    folder.mkdir(exist_ok=True)
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(TRAP.format(marker=str(marker)), encoding="utf-8")


def test_it_imports_nothing_that_others_put_in_its_way(tmp_path, monkeypatch):
    """In the current directory, in a shared folder of PYTHONPATH, in the user's own packages."""
    marker = tmp_path / "executed"
    here, shared = tmp_path / "here", tmp_path / "shared"
    traps(here, marker)
    traps(shared, marker)
    shared.chmod(0o777)
    user = tmp_path / "user" / Path(site.getusersitepackages()).relative_to(site.getuserbase())
    user.parent.mkdir(parents=True)
    traps(user, marker)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", f"{shared}{os.pathsep}")
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "path", ["", ".", str(here), str(shared), *sys.path])
    process, found = probed(tmp_path, idle=False)
    while hasattr(os, "SCHED_IDLE") and not found.exists() and not process.has_ended:
        assert os.sched_getscheduler(process._process.pid) == os.SCHED_OTHER  # a step waits
        time.sleep(0.1)
    code, said, _ = process.ended()
    assert code == 0, said
    seen = json.loads(found.read_text(encoding="utf-8"))
    assert not marker.exists()
    assert not {"", ".", str(here), str(shared), str(user)} & set(seen["path"])
    assert seen["user"] is False
    assert seen["torch"] == os.path.realpath(torch.__file__)
    assert seen["torchgraph"] == os.path.realpath(imports.packages()["torchgraph"] / "__init__.py")
    process.end()


@pytest.mark.parametrize(
    ("above", "mode", "kept"),
    [
        (0o755, 0o755, True),
        (0o755, 0o700, True),
        (0o755, 0o757, False),
        (0o755, 0o1777, False),
        (0o777, 0o755, False),
        (0o1777, 0o755, True),  # as /tmp: what is ours stays ours
    ],
)
def test_an_entry_that_others_can_write_or_replace_is_left_out(
    tmp_path, monkeypatch, above, mode, kept
):
    entry, link = tmp_path / "shared" / "entry", tmp_path / "link"
    entry.mkdir(parents=True)
    entry.chmod(mode)
    entry.parent.chmod(above)
    link.symlink_to(entry)
    monkeypatch.setattr(sys, "path", [str(entry)])
    assert (str(entry) in imports.search_path()) is kept
    # A link is judged by where it leads, and may lead elsewhere later.
    monkeypatch.setattr(sys, "path", [str(link)])
    assert (str(entry) in imports.search_path()) is kept
    assert str(link) not in imports.search_path()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has idle processes")
def test_it_is_idle_until_somebody_waits(tmp_path):
    process, _ = probed(tmp_path)
    end = time.monotonic() + 20
    while os.sched_getscheduler(process._process.pid) != os.SCHED_IDLE:
        assert time.monotonic() < end
        time.sleep(0.01)
    allowed = process.hurry() and not process._idle
    assert (os.sched_getscheduler(process._process.pid) == os.SCHED_OTHER) is allowed
    process.end()


def test_one_that_starves_is_noticed_where_its_priority_may_not_be_raised(tmp_path, monkeypatch):
    process, _ = probed(tmp_path)
    now, computed = [0.0], [3.0]
    monkeypatch.setattr(priority, "is_lowered", lambda process: True)
    monkeypatch.setattr(priority, "raised", lambda process: False)
    monkeypatch.setattr(priority, "computed", lambda process: computed[0])
    monkeypatch.setattr(compiler.time, "monotonic", lambda: now[0])
    assert process.hurry()  # nothing to compare with
    now[0], computed[0] = 2.0, 4.5
    assert process.hurry()  # three quarters of a core
    now[0], computed[0] = 4.0, 5.0
    assert not process.hurry()
    process.end()


def test_its_folder_goes_with_it(tmp_path):
    process, _ = probed(tmp_path)
    assert process.folder.stat().st_mode & 0o777 == 0o700
    process.end()
    assert not process.folder.exists()
    assert process.has_ended


MAKES = """
import sys, time
from pathlib import Path
from torchgraph.lower.inductor.cache.scratch import Scratch
print(Scratch(Path(sys.argv[1])).path, flush=True)
time.sleep(100)
"""


def test_the_folder_of_a_killed_process_is_swept_and_no_other(tmp_path):
    command = [sys.executable, "-c", MAKES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        folder = Path(maker.stdout.readline().strip())
        (folder / "order").touch()
        outside = tmp_path / "outside"
        outside.mkdir()
        (tmp_path / f"{folder.name[:-8]}linked00").symlink_to(outside)
        others = ["torchgraph-0.1.0", "torchgraph-main", "torchgraph-scratch", folder.name + "s"]
        for name in others:
            (tmp_path / name).mkdir(mode=0o700)
        Scratch(tmp_path).remove()
        assert folder.exists(), "its maker lives"
        maker.kill()
    Scratch(tmp_path).remove()
    assert not folder.exists()
    assert len(list(tmp_path.iterdir())) == 2 + len(others)


def test_a_compiler_works_in_a_folder_whose_name_it_takes(tmp_path):
    odd = tmp_path / 'it\'s a "cache" of $HOME für'
    odd.mkdir()
    made = Scratch.for_compilers(odd)
    assert scratch.is_plain(made.path)
    link = made.plain(odd)
    assert link.resolve() == odd
    assert scratch.is_plain(link)
    assert made.plain(made.path) == made.path
    made.remove()
    assert odd.exists()


FORKS = """
import os, sys, time
from pathlib import Path
from torchgraph.lower.inductor.process.compiler import Compiler
from torchgraph.lower.inductor.cache.scratch import Scratch
sys.path.append(sys.argv[1])
compiler = Compiler("sleeps", {}, Scratch(Path(sys.argv[1])), idle=True, threads=1)
child = os.fork()
if not child:
    del compiler
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
time.sleep(0.2)
print(compiler.has_ended, compiler.folder.exists(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_that_ends_leaves_the_compiler_alone(tmp_path):
    (tmp_path / "sleeps.py").write_text("import time\ndef main(order): time.sleep(100)\n")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout == "False True\n", ran.stderr
    assert ran.stderr == ""


CONTINUES = """
import os, sys, torch
from torch import nn, optim
import torchgraph as tg
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
graph = tg.train_step(model, nn.functional.cross_entropy, optim.AdamW(model.parameters()))
graph.config.set_backend("auto", switch_at=5)
x, y = torch.randn(5, 6), torch.randint(3, (5,))
for _ in range(4): graph(x, y)
assert graph._runner.programs.compiler.latest[0]._switch._compilation is not None
child = os.fork()
for _ in range(3): graph(x, y)
print("child" if not child else "parent", graph.report().backend, flush=True)
if child: assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_that_goes_on_compiles_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    ran = subprocess.run(
        [sys.executable, "-c", CONTINUES], capture_output=True, text=True, check=False
    )
    assert sorted(ran.stdout.splitlines()) == ["child inductor", "parent inductor"], ran.stderr
