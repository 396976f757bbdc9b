"""Processes that are killed while they record and step: nothing is left of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.loops import batch, made
from tests.contract.models import same
from torchgraph.lower.inductor import job

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
NO_COMPILER = job.cpp_compiler() is None
_ROOT = Path(__file__).parents[2]


def processes_that_name(text: str) -> set[int]:
    """The processes that have ``text`` in their environment or among their arguments."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended, or belongs to another user
            continue
        if text.encode() in said and state != "Z":
            found.add(int(folder.name))
    return found - {os.getpid()}


def killed(run: Callable[[], subprocess.Popen[bytes]], seconds: float) -> int:
    """Kill a process once it says that it trains and so many seconds have passed; its steps."""
    process = run()
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.kill()
    process.wait()
    steps = len(process.stdout.read().split())
    process.stdout.close()
    return steps


TRAINS = """
import sys
from tests.attack.loops import batch, made
loop = made("scheduler")
graph = loop.graph()
if sys.argv[1] == "inductor":
    graph.config.set_backend("inductor")
print("trains", flush=True)
for number in range(int(sys.argv[2])):
    graph(batch(number))
    print(number, flush=True)
print(graph.report().backend)
"""


def killed_again_and_again(count: int, longest: float, backend: str, folder: Path) -> None:
    cache, temporary = folder / "cache", folder / "tmp"
    temporary.mkdir()
    names = {
        "TORCHGRAPH_CACHE_DIR": str(cache),
        "TORCHGRAPH_BACKEND": backend,
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(_ROOT),
    }

    def run(steps: int = 10_000) -> subprocess.Popen[bytes]:
        python = [sys.executable, "-W", "ignore", "-c", TRAINS, backend, str(steps)]
        variables = [f"{name}={value}" for name, value in names.items()]
        return subprocess.Popen(["env", *variables, *python], stdout=subprocess.PIPE)

    chance = random.Random(count)
    steps = [killed(run, chance.uniform(0, longest)) for _ in range(count)]
    assert any(steps), "none came to a step"
    until = time.monotonic() + 20
    while (left := processes_that_name(str(cache))) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, "processes are left"
    whole = run(8)
    output, _ = whole.communicate(timeout=240)
    assert whole.returncode == 0
    assert output.decode().split() == ["trains", *map(str, range(8)), backend]
    assert not list(cache.glob("torchgraph-scratch-*"))
    assert not processes_that_name(str(cache))
    left_over = {
        one.name for one in temporary.iterdir() if not one.name.startswith("torchinductor_")
    }
    assert not left_over, "left after the next whole run, besides torch's own cache"


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("backend", "longest"),
    [
        ("aten", 0.6),
        pytest.param("inductor", 8.0, marks=pytest.mark.skipif(NO_COMPILER, reason="no compiler")),
    ],
)
def test_sixty_runs_that_are_killed_leave_nothing(
    backend: str, longest: float, tmp_path: Path
) -> None:
    killed_again_and_again(60, longest, backend, tmp_path)


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_forked_trainings_that_are_killed_leave_the_parents_as_it_is(count: int) -> None:
    loop = made("plain")
    graph = loop.graph()
    for number in range(3):
        graph(batch(number))
    before, chance = loop.state(), random.Random(0)
    for _ in range(count):
        child = os.fork()
        if not child:
            while True:
                made("hooks").graph()(batch(0))
                graph(batch(0))
        time.sleep(chance.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert same(loop.state(), before)
    graph(batch(3))
