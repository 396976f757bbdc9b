"""What `debug()` prints while a Graph is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..blocks.block import DebugOptions
from ..capture.program_of import Captured
from ..debug.stages import Stages
from ..debug.tree import TreeSource, trace_lines
from ..errors import MemoryBudgetWarning, warn
from ..ir import text
from ..ir.program import Program
from ..live.inputs import Call, described
from ..replay.replay import Replay


def modules(
    stages: Stages,
    source: TreeSource,
    captured: Captured,
    call: Call,
    options: Callable[[str], DebugOptions],
) -> None:
    """Level 1: each module that was called. ``options`` are those of the module at a path."""
    if stages.level < 1:
        return
    inputs = described((call.args, call.kwargs))
    for path, line in trace_lines(replace(source, calls=captured.calls, inputs=inputs)):
        if options(path).level() >= 1:
            stages.say(1, line)


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
