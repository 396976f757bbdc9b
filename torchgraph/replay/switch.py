"""Switch: from `aten` to Inductor's code, at a call that is fixed beforehand.

It is fixed so that two runs of a script give the same numbers, whatever the compiler's speed and
the disk cache; late enough that no call waits for the compiler: see `lower.cost`. The code is
compiled in another process, beside the last calls before the switch; a Graph that is called less
often compiles nothing. Where the switch is near, that process stands still while a short step runs:
the step's threads wait for each other, and would wait for a core that compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch

from .. import _extension
from ..collection import paused
from ..debug.stages import Stages
from ..errors import BackendWarning, warn
from ..ir.each import expanded
from ..ir.program import Program
from ..lower import Compilation, CompilationFailed, DiskCache, Target
from ..lower.cost import Cost, cost
from ..options.options import Options
from ..passes import Pass, inductor_pipeline, run
from ..verify.audit import Audit
from .code import Code
from .cuda.graphs import CudaGraphs, launched_singly
from .wait import limit_text, wait_for

_SHORT = 0.1
"""Seconds of a step beside which nothing compiles, if the switch is near."""
_NEAR = 16
"""Calls before the switch: this many short steps delay a compilation by at most 1.6 s."""


class Compiled(NamedTuple):
    """Inductor's code of a step, and its comparison with the aten program."""

    code: Code
    audit: Audit


class Switch:
    """When a program switches, and to what.

    Args:
        captured: the program before all passes.
        aten: the program as it runs until then.
        stages: show the wait.
    """

    def __init__(
        self,
        captured: Program,
        aten: Program,
        name: str,
        options: Options,
        graphs: CudaGraphs,
        stages: Stages,
    ) -> None:
        self.plan = ""
        """When it switches and why, since when Inductor's code runs, or why it does not."""
        self.failed = ""
        """Why the program stays on aten although Inductor was chosen."""
        self.is_over = False
        """True when nothing is to come any more."""
        self._captured = captured
        self._aten = aten
        self._name = name
        self._options = options
        self._graphs = graphs
        self._stages = stages
        self._compilation: Compilation | None = None
        self._compiled: Compiled | None = None
        self._gives_way = False
        """True while the compiler stands still beside short steps."""
        self._is_auto = options.backend == "auto"
        self._at = self._start_at = 0
        if self._is_auto:
            self._plan(cost(aten))

    def _plan(self, found: Cost) -> None:
        chosen = self._options.switch_at
        self._at = found.switch_at if chosen is None else chosen
        self._start_at = found.start_at(self._at)
        why = f"about {found.compile_seconds:.0f} s to compile, {found.step_text} a step"
        self.plan = f"switches to Inductor at call {self._at + 1:,}: " + (
            why if chosen is None else f"switch_at={chosen:,}"
        )

    def begin_ahead(self) -> None:
        """Start compiling now what the first call that the program serves will run.

        Where Inductor was chosen, that call waits for the compiler: it computes beside the call
        that confirms the program. What the disk cache has is not compiled.
        """
        if self._is_auto:
            return
        try:
            self._start(0, ahead=True)
        except Exception:  # of whatever kind: `due` starts it again, and says what it says then
            self.end_ahead()

    def end_ahead(self) -> None:
        """Drop what `begin_ahead` has started: the next call has not confirmed the program."""
        self._compilation = self._compiled = None

    def due(self, calls: int, runs: int, limit: float | None) -> Compiled | None:
        """Start compiling when it is time; the compiled code, once that is to run.

        Args:
            calls: of the program's signature, before the one that begins.
            runs: by this program, of those.
            limit: seconds that it waits for a compiler, at most; None: as long as it takes.
        """
        try:
            if self._is_auto and torch.are_deterministic_algorithms_enabled():
                self._end("stays on aten: torch.use_deterministic_algorithms")
            elif calls >= self._at:
                return self._switch(calls, limit)
            elif self._compilation is not None:
                self._compilation.go_on()
            elif calls >= self._start_at and runs:
                self._start(calls)
        except KeyboardInterrupt:  # it ended the wait
            self._end("stays on aten: the wait for Inductor was interrupted")
            raise
        except Exception as failure:  # aten computes the same: whatever it is, training goes on
            kind = "" if isinstance(failure, CompilationFailed) else f"{type(failure).__name__}: "
            self.stay_on_aten(f"{kind}{failure}")
        return None

    def around(
        self, run: AbstractContextManager[None], seconds: float
    ) -> AbstractContextManager[None]:
        """``run``, and the compiler stands still if the last step took so few ``seconds``."""
        if not self._gives_way or seconds >= _SHORT or self._compilation is None:
            return run
        return _alone(run, self._compilation)

    def aten_again(self) -> Code:
        """The aten program, lowered anew: compiled code is not to run."""
        return self._graphs.lower(self._aten, f"{self._name} again", Target(self._options))

    def stay_on_aten(self, why: str) -> None:
        """Switch no more, and warn of it."""
        self._end(f"stays on aten: {why}")
        self.failed = why
        warn(f"{self._name} stays on the aten backend. {why}", BackendWarning)

    def _start(self, calls: int, *, waits: bool = False, ahead: bool = False) -> Compilation:
        with paused():  # many objects and no garbage, as in a capture
            code = self._lowered()
            self._compiled = Compiled(code, self._audit(code))
            eager_draws = self._options.rng == "eager"
            compilation = Compilation(
                self._name, code.regions, DiskCache(), eager_draws=eager_draws
            )
        compilation.start(waits=waits, ahead=ahead)
        self._compilation = compilation
        self._gives_way = self._at - calls <= _NEAR
        return compilation

    def _lowered(self) -> Code:
        passes = compiled_passes(self._captured, self._options)
        program = run(expanded(self._captured), passes, self._options.passes)
        eager_draws = self._options.rng == "eager"
        target = Target(self._options, compiled=True, eager_draws=eager_draws)
        return self._graphs.lower(program, f"{self._name} inductor", target)

    def _audit(self, code: Code) -> Audit:
        mode = self._options.confirm
        single = launched_singly(code.executable)
        return Audit(self._aten, code.executable, single, code.regions, mode, self._name)

    def _switch(self, calls: int, limit: float | None) -> Compiled | None:
        compilation = self._compilation
        if compilation is None or (not self._is_auto and compilation.is_stale):
            compilation = self._start(calls, waits=True)
        if not compilation.is_done and self._options.switch_at is None and self._is_auto:
            warn(
                f"{self._name} waits for Inductor at call {calls + 1:,}: compiling takes longer "
                f"than foreseen. It waits {limit_text(limit)} (config.set_compile_timeout). "
                'set_backend("auto", switch_at=n) chooses another call.',
                BackendWarning,
            )
        with self._stages.stage("compiling with Inductor", goes_on=True):
            wait_for(compilation, limit, self._stages)
        for stage, spent in compilation.seconds.items():
            self._stages.seconds[f"compiling with Inductor: {stage}"] = spent
        compiled = self._compiled
        self._end(f"runs Inductor's code since call {calls + 1:,}")
        return compiled

    def _end(self, plan: str) -> None:
        self.is_over, self._gives_way = True, False
        self._compilation = self._compiled = None  # a compiler that still runs is stopped
        self.plan = plan


def compiled_passes(program: Program, options: Options) -> tuple[Pass, ...]:
    """The passes for Inductor's version of ``program``, a program before all passes."""
    devices = {spec.meta.device.type for spec in program.signature.inputs if spec.meta}
    one_kernel = all(map(_extension.load, devices))
    return inductor_pipeline(options, one_kernel=one_kernel, on_cpu=devices == {"cpu"})


@contextmanager
def _alone(run: AbstractContextManager[None], compilation: Compilation) -> Iterator[None]:
    with run:
        try:
            compilation.pause()
            yield
        finally:
            compilation.resume()
