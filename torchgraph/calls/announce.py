"""What `debug()` prints while a Graph is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from .._torch.listening import not_listening
from ..blocks.block import DebugOptions
from ..debug.modules import ModuleEntry, ModuleForest
from ..debug.stages import Stages
from ..debug.tree import called_lines, leaf_lines
from ..errors import MemoryBudgetWarning, warn
from ..ir import text
from ..ir.program import CallRecord, Program
from ..live.inputs import Call, described
from ..record.tape.telling import telling
from ..replay.replay import Replay


class Narrator:
    """Tells of modules while they run for the first time: what ``debug(1)`` asks for.

    Args:
        options: those of the module at a path; of the Graph at none.
    """

    def __init__(
        self,
        stages: Stages,
        graph_name: str,
        modules: Mapping[str, nn.Module],
        options: Callable[[str], DebugOptions],
    ) -> None:
        self._stages, self._graph_name = stages, graph_name
        self._forest = ModuleForest(modules)
        self._loud = {path for path in self._forest.entries if options(path).level() >= 1}

    @contextmanager
    def telling(self, call: Call) -> Iterator[None]:
        """The call runs: a line comes before the next one of the user's runs."""
        stages = self._stages
        stages.begin("building graph", "building graph modules")
        with stages.marked("building graph inputs"):
            inputs = described((call.args, call.kwargs))
            for line in leaf_lines("INPUT", self._graph_name, inputs):
                stages.say(1, line)
        token = telling.set(self)
        try:
            with stages.marked("building graph modules"):
                yield
        finally:
            telling.reset(token)

    def results(self, returned: object) -> None:
        """What the call gives."""
        with self._stages.marked("building graph outputs"):
            for line in leaf_lines("OUTPUT", self._graph_name, described((returned,))):
                self._stages.say(1, line)

    def called(self, record: CallRecord) -> None:
        """A module's name, inputs and tensors."""
        entry = self._entry(record)
        if entry is not None:
            self._write(called_lines(entry, record))

    def returned(self, record: CallRecord) -> None:
        """Its outputs."""
        entry = self._entry(record)
        if entry is not None:
            self._write(leaf_lines("OUTPUT", entry.path, record.outputs))

    def _entry(self, record: CallRecord) -> ModuleEntry | None:
        path = self._forest.place(record.module)
        return self._forest.entries[path] if path in self._loud else None

    def _write(self, lines: list[str]) -> None:
        with not_listening():  # to print is no part of the step
            for line in lines:
                self._stages.write(line)


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
