"""Switch: takes a replay from `aten` to Inductor's code, at a call that is fixed beforehand.

Fixed, so that two runs of a script give the same numbers, whatever the compiler's speed and the
disk cache; late enough that nobody waits for the compiler: see `lower.cost`. The code is compiled
in another process, beside the last calls before the switch; a Graph that is called less often
compiles nothing. Where the switch is near, that process stands still while a short step runs: the
step's threads wait for each other, and would wait for a core that compiles.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

from .. import _extension
from ..collection import paused
from ..debug.stages import Stages
from ..errors import BackendWarning, warn
from ..ir.each import expanded
from ..ir.program import Program
from ..lower import Compilation, CompilationFailed, DiskCache, Lowered, lower, lower_to_regions
from ..lower.cost import Cost, cost
from ..options.options import Options
from ..passes import inductor_pipeline, run
from .audit import Audit
from .replay import Replay

_SHORT = 0.1
"""Seconds of a step beside which nothing compiles, if the switch is near."""
_NEAR = 16
"""Calls: so many short steps hold a compilation up by 1.6 s. More would keep it from ending."""
_LIMIT = 600.0
"""Seconds that a call of `auto` waits for a late compiler, at most."""


class Switch:
    """Of one replay."""

    def __init__(self, replay: Replay, options: Options, name: str, stages: Stages) -> None:
        """``name`` is the program's, ``stages`` show the wait."""
        self._replay = replay
        self._options = options
        self._around = replay.around
        self._name = name
        self._stages = stages
        self._prepared: tuple[Program, Lowered, Audit] | None = None
        self._compilation: Compilation | None = None
        self._is_auto = options.backend == "auto"
        self._at = self._start_at = 0
        if self._is_auto:
            self._plan(cost(replay.program))

    def _plan(self, found: Cost) -> None:
        chosen = self._options.switch_at
        self._at = found.switch_at if chosen is None else chosen
        self._start_at = found.start_at(self._at)
        why = f"about {found.compile_seconds:.0f} s to compile, {found.step_text} a step"
        self._replay.backend_plan = f"switches to Inductor at call {self._at + 1:,}: " + (
            why if chosen is None else f"switch_at={chosen:,}"
        )

    def before_run(self, calls: int) -> None:
        """Start compiling, or switch, when it is time; ``calls`` of the program have been made."""
        try:
            careful = self._is_auto and torch.are_deterministic_algorithms_enabled()
            if careful:
                self._end("stays on aten: torch.use_deterministic_algorithms")
            elif calls >= self._at:
                self._switch(calls)
            elif self._compilation is None and calls >= self._start_at and self._replay.runs:
                self._start(calls)
        except Exception as failure:  # aten computes the same: whatever it is, training goes on
            kind = "" if isinstance(failure, CompilationFailed) else f"{type(failure).__name__}: "
            self._end(f"stays on aten: {kind}{failure}")
            self._replay.inductor_failed = f"{kind}{failure}"
            warn(f"{self._name} stays on the aten backend. {kind}{failure}", BackendWarning)

    def _start(self, calls: int) -> None:
        with paused():  # many objects and no garbage, as in a capture
            self._prepare()
        assert self._compilation is not None
        self._compilation.start()
        if self._at - calls <= _NEAR:
            self._replay.around = _Alone(self._replay, self._compilation)

    def _prepare(self) -> None:
        options, devices = self._options, self._replay.devices
        passes = inductor_pipeline(
            options,
            one_kernel=all(map(_extension.load, devices)),
            on_cpu=devices == {"cpu"},
        )
        program = run(expanded(self._replay.captured.program), passes, options.passes)
        eager_draws = options.rng == "eager"
        executable, regions = lower_to_regions(
            program,
            f"{self._name} inductor",
            eager_draws=eager_draws,
            around=self._replay.graphing.around(program),
        )
        aten, graphing = self._replay.program, self._replay.graphing

        def fallback() -> Lowered:
            return lower(aten, f"{self._name} again", options, graphing.around(aten))

        audit = Audit(aten, executable, regions, options.confirm, fallback, self._name)
        self._prepared = (program, executable, audit)
        self._compilation = Compilation(regions, DiskCache(), eager_draws=eager_draws)

    def _switch(self, calls: int) -> None:
        if self._compilation is None:
            self._start(calls)
        assert self._compilation is not None
        assert self._prepared is not None
        if not self._compilation.is_done and self._options.switch_at is None and self._is_auto:
            warn(
                f"{self._name} waits for Inductor at call {calls + 1:,}: compiling takes longer "
                f"than foreseen. It waits {_LIMIT:.0f} s at most. "
                'set_backend("auto", switch_at=n) chooses another call.',
                BackendWarning,
            )
        with self._stages.stage("compiling with Inductor", goes_on=True):
            self._compilation.finish(_LIMIT if self._is_auto else None)
        self._replay.adopt(*self._prepared)
        self._end(f"runs Inductor's code since call {calls + 1:,}")

    def _end(self, plan: str) -> None:
        self._replay.before_run, self._replay.around = None, self._around
        self._replay.backend_plan = plan


class _Alone:
    """Around a run: as ever, and the compiler stands still if the last run was short."""

    def __init__(self, replay: Replay, compilation: Compilation) -> None:
        self._replay, self._compilation, self._inner = replay, compilation, replay.around

    def __enter__(self) -> None:
        taken = self._replay.seconds[-1] if self._replay.seconds else self._replay.first_seconds
        with ExitStack() as stack:
            stack.enter_context(self._inner)
            if taken < _SHORT:
                stack.callback(self._compilation.resume)
                self._compilation.pause()
            self._leave = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._leave.close()
