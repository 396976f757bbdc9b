"""Compilation: regions on their way through Inductor, in a process of our own."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence

from ..._torch import inductor as _inductor
from ...counters import counters
from ..regions.region import Region
from . import failure_log
from .cache.scratch import Scratch
from .disk_cache import DiskCache
from .failure import Failure
from .job import Job, missing, surroundings
from .process.compiler import Compiler
from .process.queue import queue

_AHEAD = 2
"""Processes of a compilation that is begun ahead: the second core of two would be idle."""
_MAIN = "torchgraph.lower.inductor.compile_process"
_LOOKS = 0.05
"""Seconds between two looks at a compiler that a step waits for."""
_HURRIES = 2.0
"""Seconds between two looks at whether it starves."""


class CompilationFailed(Exception):
    """Inductor has no code for a region."""


class Compilation:
    """Compiles what the disk cache does not have, and then gives each region its function.

    Args:
        name: of the Graph, for those who wait.
    """

    def __init__(
        self, name: str, regions: Sequence[Region], cache: DiskCache, *, eager_draws: bool
    ) -> None:
        self._name = name
        self._regions = regions
        self._cache = cache
        self._jobs = [Job.of(region, eager_draws=eager_draws) for region in regions]
        self._keys = [job.key() for job in self._jobs]
        self._surroundings = surroundings()
        self._ops = sum(node.op == "call_function" for r in regions for node in r.gm.graph.nodes)
        self._compiler: Compiler | None = None
        self._owner = 0
        """The process that started this; a fork of it starts anew."""
        self._waits_for_turn = False
        self._is_ahead = False
        self._problem = ""
        self.seconds: dict[str, float] = {}
        """What was spent by stage; those of all compiling processes together."""

    # --- what a step asks for ---------------------------------------------------------------------

    def start(self, *, waits: bool = False, ahead: bool = False) -> None:
        """See that what is missing is compiled, when it is its turn; return at once.

        Args:
            waits: `finish` comes next.
            ahead: `finish` comes soon, if at all: by two processes, and not before what others
                wait for.

        Raises:
            CompilationFailed: Inductor has no compiler here.
        """
        self._owner, self._compiler, self._problem = os.getpid(), None, ""
        if not self._absent():
            return
        devices = [meta.device for region in self._regions for meta in region.inputs]
        problem = missing(devices)
        if problem:
            raise CompilationFailed(f"Inductor cannot compile here: {problem}.")
        self._waits_for_turn, self._is_ahead = True, ahead
        queue.put(self, first=waits)

    def go_on(self) -> None:
        """Start now, if it is its turn."""
        if self._waits_for_turn:
            queue.advance()

    def pause(self) -> None:
        """Let the compiler stand still, where the system has what that needs."""
        if self._compiler is not None and self._is_ours:
            self._compiler.pause()

    def resume(self) -> None:
        """Let it go on."""
        if self._compiler is not None and self._is_ours:
            self._compiler.resume()

    @property
    def is_stale(self) -> bool:
        """True when threads or options of Inductor's are not what they were when it was made."""
        return self._surroundings != surroundings()

    @property
    def is_done(self) -> bool:
        """True when `finish` would not wait."""
        return self._is_ours and not self._waits_for_turn and self.has_ended

    @property
    def status(self) -> str:
        """What one waits for: ``TrainGraph_0, 154 ops``, and how many are before it."""
        before = queue.before(self)
        return f"{self._name}, {self._ops} ops" + (f", after {before} more" if before else "")

    def finish(
        self, limit: float | None = None, goes_on: Callable[[float], bool] = lambda waited: True
    ) -> None:
        """Wait, for ``limit`` seconds at most, and give each region its function.

        Args:
            goes_on: asked while waiting, with the seconds so far; False ends the wait.

        Raises:
            CompilationFailed: with what Inductor said; or the wait is over.
        """
        if not self._is_ours:
            self.start(waits=True)
        self._is_ahead = False
        try:
            self._wait(limit, goes_on)
            self._take_note()
            start = time.monotonic()
            self._load()
            self.seconds["loading"] = time.monotonic() - start
        finally:
            self._drop()

    # --- what the queue asks for ------------------------------------------------------------------

    @property
    def keys(self) -> frozenset[str]:
        """The names of what it compiles."""
        return frozenset(self._keys)

    @property
    def has_ended(self) -> bool:
        """True when no process compiles."""
        return self._compiler is None or self._compiler.has_ended

    def begin(self, *, idle: bool) -> None:
        """Start the process, unless another has compiled all meanwhile."""
        self._waits_for_turn = False
        absent = self._absent()
        if not absent:
            return
        counters.region_compiles += len(absent)
        processes = max(queue.processes(idle=idle), _AHEAD if self._is_ahead else 1)
        order = {
            "config": _inductor.changed_config(),
            "cache": str(self._cache.root),
            "jobs": list(absent),
            "keys": absent,
            "processes": processes,
        }
        threads = max(queue.threads, processes // len(absent))  # few functions have more each
        try:
            scratch = Scratch.for_compilers(self._cache.root)
            self._compiler = Compiler(_MAIN, order, scratch, idle=idle, threads=threads)
        except OSError as error:  # said to the step that waits for it, not to the one that asked
            self._problem = f"The compiler cannot be started ({error})."

    @property
    def yields(self) -> bool:
        """True where it was begun ahead, and nobody waits for it yet."""
        return self._is_ahead

    def put_back(self) -> None:
        """End its process: it has another turn, once what somebody waits for has had its own."""
        if self._compiler is not None:
            self._compiler.end()
            self._compiler = None
        self._waits_for_turn = True

    def hurry(self) -> None:
        """Raise the compiler's priority; where it starves and that is forbidden, start another."""
        compiler = self._compiler
        if compiler is not None and not compiler.has_ended and not compiler.hurry():
            compiler.end()
            self.begin(idle=False)

    # ----------------------------------------------------------------------------------------------

    @property
    def _is_ours(self) -> bool:
        return self._owner == os.getpid()

    def _absent(self) -> dict[str, str]:
        return {
            job.json(): key
            for job, key in zip(self._jobs, self._keys, strict=True)
            if self._cache.find(key) is None
        }

    def _wait(self, limit: float | None, goes_on: Callable[[float], bool]) -> None:
        start, hurried = time.monotonic(), -_HURRIES
        while not self.is_done:
            waited = time.monotonic() - start
            if limit is not None and waited > limit:
                raise CompilationFailed(
                    f"Inductor was not done after {limit:g} s "
                    "(config.set_compile_timeout sets another limit)."
                )
            if not goes_on(waited):
                raise CompilationFailed("The wait for Inductor was interrupted.")
            if waited - hurried >= _HURRIES:
                hurried = waited
                queue.advance(first=self)
            if self._compiler is None:
                time.sleep(_LOOKS)
            else:
                self._compiler.wait(_LOOKS)
        queue.advance()

    def _take_note(self) -> None:
        """Raise what the compiling process left, if it failed."""
        if self._problem:
            raise CompilationFailed(self._problem)
        if self._compiler is None:
            return
        code, said, error = self._compiler.ended()
        self.seconds = self._compiler.seconds()
        if not code:
            return
        failure = Failure.from_json(error) if error else Failure.of_output(said, code)
        region = None
        if failure.key in self._keys:
            region = self._regions[self._keys.index(failure.key)]
        what = failure.explained(region)
        log = failure_log.keep(self._cache.root, f"{self._name}: {what}\n\n{failure.whole}\n{said}")
        raise CompilationFailed(f"{what}\n  {log}")

    def _load(self) -> None:
        """Give each region its function: one for all that have the same code."""
        found: dict[str, _inductor.Compiled] = {}
        for region, job, key in zip(self._regions, self._jobs, self._keys, strict=True):
            if key not in found:
                found[key] = self._loaded(job, key, region.__name__)
            region.compiled(found[key])
        counters.region_loads += len(found)

    def _loaded(self, job: Job, key: str, name: str) -> _inductor.Compiled:
        entry = self._cache.find(key)
        if entry is None:
            raise CompilationFailed(f"The compiled code of {name} was not kept.")
        scratch = Scratch.for_compilers(self._cache.root)
        try:
            function = job.load(scratch.copy_of(entry))
        except Exception as error:  # of whatever kind: its code is not ours
            scratch.remove()
            raise CompilationFailed(
                f"{entry} cannot be loaded ({type(error).__name__}: {error})."
            ) from error
        weakref.finalize(function, scratch.remove)
        return function

    def _drop(self) -> None:
        queue.remove(self)
        self._waits_for_turn = False
        if self._compiler is not None and self._is_ours:
            self._compiler.end()
            self._compiler = None
