"""While a step waits for Inductor: what is shown, what ends the wait, and what is said then."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from pathlib import Path

import pytest
from torch import nn, optim

import torchgraph as tg
from tests.lower.test_inductor import cache, empty, shared, trained
from tests.parity.models import Mlp, batches
from torchgraph.errors import BackendWarning, InvalidOption
from torchgraph.graph import Graph
from torchgraph.lower import Compilation
from torchgraph.lower.inductor import failure_log, job
from torchgraph.lower.inductor.failure import Failure
from torchgraph.lower.inductor.process import compiler
from torchgraph.replay import wait

__all__ = ["cache", "empty", "shared"]

pytestmark = pytest.mark.skipif(
    job.cpp_compiler() is None, reason="Inductor needs a C++ compiler, and there is none here"
)


@pytest.fixture
def sleeping(monkeypatch, tmp_path):
    """A compiler that is never done, and those that were started."""
    sleeps = tmp_path / "child.py"
    sleeps.write_text("import time\ntime.sleep(100)\n", encoding="utf-8")
    monkeypatch.setattr(compiler, "_CHILD", sleeps)
    started = []
    begin = Compilation.begin

    def noted(self, *, idle):
        begin(self, idle=idle)
        started.append(self._compiler)

    monkeypatch.setattr(Compilation, "begin", noted)
    return started


class Interrupted:
    """Presses Ctrl-C once a compiler was started."""

    def __init__(self, started):
        self._started = started
        self._thread = threading.Thread(target=self._press)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, traceback):
        self._thread.join()

    def _press(self):
        while not self._started:
            time.sleep(0.01)
        time.sleep(0.2)
        self.at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_the_wait_at_once_and_aten_goes_on(empty, sleeping, interruptible):
    model = Mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    graph = tg.train_step(model, nn.functional.cross_entropy, optimizer)
    graph.config.set_backend("inductor")
    data = batches(Mlp, 6)
    graph(*data[0])
    graph(*data[1])
    with Interrupted(sleeping) as pressed, pytest.raises(KeyboardInterrupt):
        graph(*data[2])
    assert time.monotonic() - pressed.at < 2
    assert sleeping[0].has_ended
    assert not sleeping[0].folder.exists()
    assert graph.state_dict()["_train"]["step"] == 2, "the call did nothing"
    for batch in data[3:]:
        graph(*batch)
    report = graph.report()
    assert report.backend_plan == "stays on aten: the wait for Inductor was interrupted"
    assert report.calls.programs == 3


def test_a_handler_that_raises_nothing_ends_the_wait_too(empty, sleeping):
    caught = []
    before = signal.signal(signal.SIGINT, lambda *_: caught.append(True))
    try:
        with Interrupted(sleeping), pytest.warns(BackendWarning, match="was interrupted"):
            got, _, graph = trained("inductor")
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [True]
    assert got == trained("aten")[0]
    assert "interrupted" in graph.report().backend_plan


def test_a_child_that_ends_is_no_interrupt(empty, sleeping):
    """A DataLoader listens to the ends of its workers, and hears of compilers, too."""
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    press = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGCHLD))
    try:
        press.start()
        with pytest.warns(BackendWarning, match="was not done after 1 s"):
            trained("inductor", timeout=1)
    finally:
        press.cancel()
        signal.signal(signal.SIGCHLD, before)


def test_a_wait_says_what_for_and_how_long(empty, sleeping, monkeypatch, capfd):
    monkeypatch.setattr(wait, "_FIRST", 0.1)
    with pytest.warns(BackendWarning, match="was not done after 0.4 s"):
        trained("inductor", timeout=0.4)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "ops" in line]
    assert line.startswith("torchgraph: compiling ")
    assert line.endswith(" ops, 0 s so far, 0.4 s at most.")


@pytest.mark.parametrize("wrong", [0, -1, "600", True, float("nan")])
def test_a_timeout_is_a_number_of_seconds(wrong):
    with pytest.raises(
        InvalidOption, match=r"set_compile_timeout takes (seconds above 0|a number or None), not"
    ):
        Graph().config.set_compile_timeout(wrong)


# --- why it failed --------------------------------------------------------------------------------

GCC = """C++ compile error

Command:
g++ main.cpp -o main.so

Output:
{}
"""
SAID = {
    "main.cpp:3:1: error: 'foo' was not declared": [
        "main.cpp: In function 'int f()':",
        "main.cpp:3:1: error: 'foo' was not declared",
        "main.cpp:4:1: error: expected ';'",
        "compilation terminated.",
    ],
    "main.cpp:1:10: fatal error: omp.h: No such file or directory": [
        "main.cpp:1:10: fatal error: omp.h: No such file or directory",
        "compilation terminated.",
    ],
    "/usr/bin/ld: cannot find -lgomp: No such file or directory": [
        "/usr/bin/ld: cannot find -lgomp: No such file or directory",
        "collect2: error: ld returned 1 exit status",
    ],
    "{standard input}: Fatal error: can't write 4 bytes to section .text: 'No space left'": [
        "{standard input}: Assembler messages:",
        "{standard input}: Fatal error: can't write 4 bytes to section .text: 'No space left'",
        "Please submit a full bug report, with preprocessed source.",
        "See <file:///usr/share/doc/gcc-12/README.Bugs> for instructions.",
    ],
}


@pytest.mark.parametrize("reason", SAID)
def test_the_first_line_with_error_is_the_reason(reason):
    said = GCC.format("\n".join(SAID[reason]))
    assert Failure.of(RuntimeError(said), "key").said == f"RuntimeError: {reason}"
    ended = Failure.of_output("\n".join(SAID[reason]), 1)
    assert ended.said == f"the compiling process ended with 1: {reason}"


def test_a_process_that_was_killed_or_printed_no_error():
    killed = Failure.of_output("", -signal.SIGKILL).said
    assert killed == "the compiling process was killed (SIGKILL, for lack of memory perhaps)"
    lost = Failure.of_output("Traceback\nModuleNotFoundError: No module named 'sympy'\n", 1).said
    assert lost.endswith("ended with 1: ModuleNotFoundError: No module named 'sympy'")


def compiler_that_says(tmp_path: Path, text: str) -> str:
    script = tmp_path / "broken compiler"
    version = '[ "$1" = --version ] && echo g++ && exit'
    lines = ["#!/bin/sh", version, "cat >&2 <<'END'", text, "END", "exit 1", ""]
    script.write_text("\n".join(lines), encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_a_failed_compilation_names_the_error_and_a_log(empty, monkeypatch, tmp_path):
    said = ["main.cpp:1:1: error: broken on purpose", "compilation terminated."]
    monkeypatch.setenv("CXX", compiler_that_says(tmp_path, "\n".join(said)))
    job._machine.cache_clear()
    try:
        with pytest.warns(BackendWarning, match="error: broken on purpose\n") as seen:
            trained("inductor", 5)
    finally:
        job._machine.cache_clear()
    message = str(seen[0].message)
    assert "terminated" not in message
    log = Path(message.partition("All that was said: ")[2].splitlines()[0])
    assert log.parent == empty / "logs"
    assert all(line in log.read_text(encoding="utf-8") for line in said)


def test_few_logs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(failure_log, "_KEPT", 3)
    for number in range(5):
        failure_log.keep(tmp_path, str(number))
    assert len(list((tmp_path / "logs").iterdir())) == 3


def test_where_no_log_can_be_written_it_says_so(tmp_path):
    (tmp_path / "logs").touch()
    assert failure_log.keep(tmp_path, "text") == "No log of it could be written (File exists)."
