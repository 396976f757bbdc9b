"""Switch: takes a replay from `aten` to Inductor's code, at a call that is fixed beforehand.

Fixed, so that two runs of a script give the same numbers, whatever the compiler's speed and the
disk cache. The code is compiled in another process, from the second call on; a Graph that is called
once compiles nothing.
"""

from __future__ import annotations

import torch

from .. import _extension
from ..debug.stages import Stages
from ..errors import BackendWarning, warn
from ..lower import Compilation, CompilationFailed, DiskCache, Lowered, lower_to_regions
from ..options import Options
from ..passes import inductor_pipeline, run
from ..program import Program
from .replay import Replay


class Switch:
    """Of one replay."""

    def __init__(self, replay: Replay, options: Options, name: str, stages: Stages) -> None:
        """``name`` is the program's, ``stages`` show the wait."""
        self._replay = replay
        self._options = options
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
                self._replay.before_run = None
            elif calls >= self._at:
                self._switch()
            elif self._compilation is None and self._replay.runs:
                self._start()
        except Exception as failure:  # aten computes the same: whatever it is, training goes on
            self._replay.before_run = None
            kind = "" if isinstance(failure, CompilationFailed) else f"{type(failure).__name__}: "
            warn(f"{self._name} stays on the aten backend. {kind}{failure}", BackendWarning)

    def _start(self) -> None:
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
        self._compilation.start()

    def _switch(self) -> None:
        with self._stages.stage("compiling with Inductor"):
            if self._compilation is None:
                self._start()
            assert self._compilation is not None
            assert self._prepared is not None
            self._compilation.finish()
        self._replay.adopt(*self._prepared)
        self._replay.before_run = None
