"""What `debug()` prints while a Graph is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from .._torch.listening import not_listening
from ..blocks.block import DebugOptions
from ..debug.stages import Stages
from ..debug.tree import CallLines
from ..errors import MemoryBudgetWarning, warn
from ..ir import text
from ..ir.program import Program
from ..live.inputs import described
from ..replay.replay import Replay


class Building:
    """Level 1: the lines of each module, when it is called and when it has run, once.

    Args:
        options: those of the module at a path.
    """

    def __init__(
        self,
        stages: Stages,
        modules: Mapping[str, nn.Module],
        options: Callable[[str], DebugOptions],
    ) -> None:
        self._stages = stages
        self._lines = CallLines(modules)
        self._options = options

    def __call__(self, path: str, tag: str, values: object) -> None:
        if self._options(path).level() >= 1:
            with not_listening():  # to print is no part of the step, which it would slow down
                for line in self._lines.of(path, tag, described(values)):
                    self._stages.tell(line)


def program(stages: Stages, name: str, replay: Replay, tree: Callable[[], str]) -> None:
    """Level 1: the tree. Level 2: the programs. Level 3: the Python that runs."""
    if stages.level >= 1:
        stages.say(1, f"{name} with operators:\n{tree()}")
    if stages.level >= 2:
        stages.say(2, f"{name} as captured:\n{text.render(replay.captured.program)}")
        stages.say(2, f"{name} after all passes:\n{text.render(replay.program)}")
    if stages.level >= 3:
        stages.say(3, f"{name} as it runs:\n{replay.executable.source}")


def budget(program: Program) -> None:
    """Warn where activation checkpointing cannot keep as little as it was asked to."""
    for record in program.history:
        if record.name == "activation_checkpointing":
            for refusal in record.refusals:
                warn(f"Activation checkpointing: {refusal.reason}.", MemoryBudgetWarning)
