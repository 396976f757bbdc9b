"""Compiler: one process that compiles. It ends with this process, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ....environment import compiler_environment
from ..cache.scratch import Scratch
from . import imports, priority
from .child import GUARDED

_CHILD = Path(__file__).with_name("child.py")
_STARVES = 0.5
"""The share of a core below which somebody else keeps a compiler from computing."""


class Compiler:
    """A process that runs a function of a module, beside a file with what it has to do.

    Args:
        main: the module, whose ``main`` takes the path of the order.
        order: what it has to do, besides what is here.
        scratch: where it works; removed with it.
        idle: at the lowest priority. Else at that of this process.

    Raises:
        OSError: no process can be started, or the folder cannot be written.
    """

    def __init__(
        self, main: str, order: Mapping[str, object], scratch: Scratch, *, idle: bool, threads: int
    ) -> None:
        self._scratch = scratch
        self._idle = idle
        self._guarded = False
        self._pauses = _has_pidfd()
        self._seen: tuple[float, float] | None = None
        """When somebody who waits looked last, and the seconds computed until then."""
        surroundings = {
            "main": main,
            "parent": os.getpid(),
            "pauses": self._pauses,
            "idle": idle,
            "path": imports.search_path(),
            "packages": {name: str(path) for name, path in imports.packages().items()},
        }
        text = json.dumps({**order, **surroundings})
        self.folder = scratch.path
        (self.folder / "order").write_text(text, encoding="utf-8")
        variables = compiler_environment(self.folder, threads)
        if os.sep in variables.get("CXX", ""):
            variables["CXX"] = str(scratch.plain(Path(variables["CXX"])))
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", str(_CHILD), str(self.folder / "order")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=variables,
            )
        self._finalizer = weakref.finalize(self, _end, self._process, scratch)
        _running.add(self)

    @property
    def has_ended(self) -> bool:
        """True when `said` would not wait."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Wait for its end, so long at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def ended(self) -> tuple[int, str, str]:
        """Its exit status, what it printed, and the file ``error`` if it left one; once ended."""
        code = self._process.wait()
        error, output = self.folder / "error", self.folder / "output"
        report = error.read_text(encoding="utf-8") if error.exists() else ""
        return code, output.read_text(encoding="utf-8", errors="replace"), report

    def seconds(self) -> dict[str, float]:
        """What all its processes have spent by stage, as far as they have said."""
        found: dict[str, float] = {}
        with suppress(OSError, ValueError):
            for line in (self.folder / "stages").read_text(encoding="utf-8").splitlines():
                for stage, spent in json.loads(line).items():
                    found[stage] = found.get(stage, 0.0) + spent
        return found

    def end(self) -> None:
        """End it and what it has started, and remove its folder."""
        self._finalizer()

    def pause(self) -> None:
        """Let it stand still, where the system has what that needs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def hurry(self) -> bool:
        """Somebody waits: raise its priority. False while it starves, and may not be raised."""
        if not self._idle or not priority.is_lowered(self._process.pid):
            return True  # it may still lower itself: the next look raises it then
        if priority.raised(self._process.pid):
            self._idle = False
            return True
        before, now = self._seen, (time.monotonic(), priority.computed(self._process.pid))
        self._seen = now
        if before is None or not now[1]:
            return True
        return now[1] - before[1] >= _STARVES * (now[0] - before[0])

    def disown(self) -> None:
        """This process is a fork of the one that started it: leave both alone."""
        self._finalizer.detach()
        self._process.returncode = 0  # else Popen complains that it still runs

    def _signal(self, number: int) -> None:
        if self.is_guarded:
            with suppress(ProcessLookupError):  # it has ended, and somebody took note of that
                os.killpg(self._process.pid, number)

    @property
    def is_guarded(self) -> bool:
        """True once another process would end the compiler, stopped or not, with this one."""
        if self._pauses and not self._guarded:
            self._guarded = (self.folder / GUARDED).exists()
        return self._guarded


_running: weakref.WeakSet[Compiler] = weakref.WeakSet()


def _forked() -> None:
    for compiler in _running:
        compiler.disown()
    _running.clear()


os.register_at_fork(after_in_child=_forked)


def _has_pidfd() -> bool:
    """True where another process sees the end of this one: on Linux, unless it is forbidden."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _end(process: subprocess.Popen[bytes], scratch: Scratch) -> None:
    """The process is the head of a group of its own, with the compilers that it runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it has just been started: there is no group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    scratch.remove()
