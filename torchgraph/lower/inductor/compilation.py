"""Compilation: regions on their way through Inductor, in a process of our own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..._torch import inductor as _inductor
from ...counters import counters
from ..regions.region import Region
from .compile_child import GUARDED
from .disk_cache import DiskCache
from .failure import Failure
from .job import Job, missing

_CHILD = Path(__file__).with_name("compile_child.py")


class CompilationFailed(Exception):
    """Inductor has no code for a region."""


class Compilation:
    """Compiles what the disk cache does not have, and then gives each region its function."""

    def __init__(self, regions: Sequence[Region], cache: DiskCache, *, eager_draws: bool) -> None:
        self._regions = regions
        self._cache = cache
        self._jobs = [Job.of(region, eager_draws=eager_draws) for region in regions]
        self._keys = [job.key() for job in self._jobs]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._pauses = _has_pidfd()
        self._guarded = False

    def start(self) -> None:
        """Start compiling what is missing; return at once.

        Raises:
            CompilationFailed: Inductor has no compiler here.
        """
        absent = {
            job.json(): key
            for job, key in zip(self._jobs, self._keys, strict=True)
            if self._cache.find(key) is None
        }
        if absent:
            devices = [meta.device for region in self._regions for meta in region.inputs]
            problem = missing(devices)
            if problem:
                raise CompilationFailed(f"Inductor cannot compile here: {problem}.")
            self._start(absent)

    def pause(self) -> None:
        """Let the compiler stand still, where the system has what that needs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    @property
    def is_done(self) -> bool:
        """True when `finish` would not wait."""
        return self._process is None or self._process.poll() is not None

    def finish(self, limit: float | None = None) -> None:
        """Wait, for ``limit`` seconds at most, and give each region its function.

        Raises:
            CompilationFailed: with what Inductor said; or the limit is over.
        """
        self._wait(limit)
        for region, job, key in zip(self._regions, self._jobs, self._keys, strict=True):
            entry = self._cache.find(key)
            if entry is None:
                raise CompilationFailed(f"The compiled code of {region.__name__} was not kept.")
            try:
                region.compiled(job.load(entry))
            except Exception as error:  # of whatever kind: its code is not ours
                raise CompilationFailed(
                    f"{entry} cannot be loaded ({type(error).__name__}: {error})."
                ) from error
        counters.region_loads += len(self._regions)

    def _start(self, absent: dict[str, str]) -> None:
        counters.region_compiles += len(absent)
        folder = self._folder = Path(tempfile.mkdtemp(prefix="torchgraph-"))
        order = {
            "parent": os.getpid(),
            "pauses": self._pauses,
            "path": sys.path,
            "config": _inductor.changed_config(),
            "cache": str(self._cache.root),
            "jobs": list(absent),
            "keys": absent,
        }
        (folder / "order").write_text(json.dumps(order), encoding="utf-8")
        child = _CHILD.read_text(encoding="utf-8")
        with (folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", child, str(folder / "order")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._finalizer = weakref.finalize(self, _end, self._process, folder)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._is_guarded():
            with suppress(ProcessLookupError):  # it has ended, and somebody took note of that
                os.killpg(self._process.pid, number)

    def _is_guarded(self) -> bool:
        """True once another process would end the compiler, stopped or not, with this one."""
        if self._pauses and not self._guarded and self._folder is not None:
            self._guarded = (self._folder / GUARDED).exists()
        return self._guarded

    def _wait(self, limit: float | None) -> None:
        if self._process is None or self._folder is None:
            return
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired as late:
            self._finalizer()
            self._process = None
            raise CompilationFailed(f"Inductor was not done after {limit:g} s.") from late
        error = self._folder / "error"
        failure = Failure.from_json(error.read_text(encoding="utf-8")) if error.exists() else None
        said = (self._folder / "output").read_text(encoding="utf-8", errors="replace")
        self._finalizer.detach()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._process = None
        if failure is not None and failure.key in self._keys:
            region = self._regions[self._keys.index(failure.key)]
            raise CompilationFailed(failure.explained(region))
        if code:
            last = [*said.strip().splitlines()[-1:], f"the process ended with {code}"]
            raise CompilationFailed(f"Inductor failed: {failure.said if failure else last[0]}")


def _has_pidfd() -> bool:
    """True where another process sees the end of this one: on Linux, unless it is forbidden."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """The process is the head of a group of its own, with the compilers that it runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it has just been started: there is no group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
