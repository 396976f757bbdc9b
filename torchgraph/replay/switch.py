"""Switch: takes a replay from `aten` to Inductor's code, at a call that is fixed beforehand.

Fixed, so that two runs of a script give the same numbers, whatever the compiler's speed and the
disk cache. The code is compiled in another process, from the second call on; a Graph that is called
once compiles nothing. That process stands still while a short step runs: the step's threads wait
for each other, and would wait for a core that compiles.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

from .. import _extension
from ..collection import paused
from ..debug.stages import Stages
from ..errors import BackendWarning, warn
from ..lower import Compilation, CompilationFailed, DiskCache, Lowered, lower_to_regions
from ..options import Options
from ..passes import inductor_pipeline, run
from ..program import Program
from .replay import Replay

_SHORT = 0.1
"""Seconds of a step beside which nothing compiles: 16 of them hold a compilation up by 1.6."""


class Switch:
    """Of one replay."""

    def __init__(self, replay: Replay, options: Options, name: str, stages: Stages) -> None:
        """``name`` is the program's, ``stages`` show the wait."""
        self._replay = replay
        self._options = options
        self._around = replay.around
        self._name = name
        self._stages = stages
        self._at = 0 if options.backend == "inductor" else options.switch_at
        self._prepared: tuple[Program, Lowered] | None = None
        self._compilation: Compilation | None = None

    def before_run(self, calls: int) -> None:
        """Start compiling, or switch, when it is time; ``calls`` of the program have been made."""
        try:
            careful = (
                self._options.backend == "auto" and torch.are_deterministic_algorithms_enabled()
            )
            if self._replay.serves_once or careful:
                self._end()
            elif calls >= self._at:
                self._switch()
            elif self._compilation is None and self._replay.runs:
                self._start()
        except Exception as failure:  # aten computes the same: whatever it is, training goes on
            self._end()
            kind = "" if isinstance(failure, CompilationFailed) else f"{type(failure).__name__}: "
            self._replay.inductor_failed = f"{kind}{failure}"
            warn(f"{self._name} stays on the aten backend. {kind}{failure}", BackendWarning)

    def _start(self) -> None:
        with paused():  # many objects and no garbage, as in a capture
            self._prepare()
        assert self._compilation is not None
        self._compilation.start()
        self._replay.around = _Alone(self._replay, self._compilation)

    def _prepare(self) -> None:
        options, devices = self._options, self._replay.devices
        passes = inductor_pipeline(
            options,
            one_kernel=all(map(_extension.load, devices)),
            on_cpu=devices == {"cpu"},
        )
        program = run(self._replay.captured.program, passes, options.passes)
        eager_draws = options.rng == "eager"
        executable, regions = lower_to_regions(
            program,
            f"{self._name} inductor",
            eager_draws=eager_draws,
            around=self._replay.graphing.around(program),
        )
        self._prepared = (program, executable)
        self._compilation = Compilation(regions, DiskCache(), eager_draws=eager_draws)

    def _switch(self) -> None:
        with self._stages.stage("compiling with Inductor"):
            if self._compilation is None:
                self._start()
            assert self._compilation is not None
            assert self._prepared is not None
            self._compilation.finish()
        self._replay.adopt(*self._prepared)
        self._end()

    def _end(self) -> None:
        self._replay.before_run, self._replay.around = None, self._around


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
