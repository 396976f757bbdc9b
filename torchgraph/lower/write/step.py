"""Writing a lowered program: the function of a step, and those of the rows that it goes over."""

from __future__ import annotations

from torch import fx

from ...counters import counters
from ...ir import effects
from ...ir.nodes import sequence
from ...ir.program import Program
from ..inplace.each_in_place import EachInPlace, RowsFunction
from ..memory.arena import Arena
from ..memory.planning import MemoryPlan
from ..pauses import Pauses
from .around import Around, Nothing
from .executable import Executable, returned
from .rows import ColumnWriter, RowWriter
from .undoing import Undoing
from .writer import Writer


def write(lowered: Program, name: str, memory: MemoryPlan) -> Executable:
    """Write a lowered program as one Python function that frees each value after its last use."""
    counters.lowers += 1
    return _written(lowered, name, memory, Nothing())


def rewritten(executable: Executable, what: str, around: Around) -> Executable:
    """Write the same program again with code around each call; the results are bitwise equal.

    Args:
        what: it is, for tracebacks: ``labelled``.
    """
    name = f"{executable.name}, {what}"
    return _written(executable.program, name, executable.memory, around)


def _written(lowered: Program, name: str, memory: MemoryPlan, around: Around) -> Executable:
    writer = _StepWriter(lowered, name, memory.arena, around)
    pauses = Pauses.of(lowered, writer.compile())
    return Executable(
        name,
        pauses.function,
        pauses,
        lowered.signature,
        returned(lowered.signature),
        writer.source + "".join(writer.rows),
        tuple(writer.nodes),
        writer.first_write,
        Undoing.of(lowered, writer.writes, len(writer.nodes) + 1),
        writer.last_expect,
        writer.first_write <= len(writer.nodes),
        any(effects.of(node).random for node in lowered.nodes),
        lowered,
        memory,
    )


class _StepWriter(Writer):
    """Writes the function of a step."""

    def __init__(self, program: Program, name: str, arena: Arena, around: Around) -> None:
        super().__init__(program, name, arena, around)
        self._functions: dict[tuple[type[RowWriter], int], RowsFunction] = {}
        """By kind and body."""
        self._numbers: dict[int, int] = {}
        """Of bodies, in the names of their functions."""

    def _call(self, node: fx.Node) -> str:
        if isinstance(node.target, EachInPlace):
            return self._call_of_rows(node, node.target)
        return super()._call(node)

    def _call_of_rows(self, node: fx.Node, target: EachInPlace) -> str:
        """The rows that run together column by column, then the others one after the other."""
        columns, shared = node.args
        around = self._around.in_rows(target.rows)
        fits = isinstance(around, Nothing) and ColumnWriter.fits(target.body)
        together = target.together if fits else []
        by_row = self._rows(RowWriter, target, around)
        by_column = self._rows(ColumnWriter, target, around) if together else None
        call = target.calling(by_row, by_column, together)
        parts = [self._value(part) for part in target.parts(sequence(columns), together)]
        return f"{self._bind(call, target.__name__)}([{', '.join(parts)}], {self._value(shared)})"

    def _rows(self, kind: type[RowWriter], target: EachInPlace, around: Around) -> RowsFunction:
        """The function of a kind for a body: one for all nodes that share it."""
        key = (kind, id(target.body))
        if key in self._functions:
            return self._functions[key]
        number = self._numbers.setdefault(id(target.body), len(self.rows))
        name = f"{target.__name__}_{number}" + "_together" * (kind is ColumnWriter)
        told = f"{self._filename[12:-1]}, {name}"
        writer = kind(target.body, told, around, name, target.columns)
        function: RowsFunction = writer.compile()
        self.rows.append(f"\n{writer.source}")
        if isinstance(around, Nothing):
            self._functions[key] = function
        return function
