"""Functions over the rows of columns: row by row, or op by op for all rows of small tensors."""

from __future__ import annotations

from typing import Any

from torch import fx

from ...ir import effects
from ...ir.program import SKIPPED_BY, Program
from ..memory.arena import Arena
from ..pauses import is_pause
from .around import Around
from .foreach import OverLists, Repeated, over_lists
from .writer import Writer, targets


class RowWriter(Writer):
    """Writes a function that runs the program for one row after the other.

    It takes columns and what all rows share; it returns what each row returns, if that is anything.
    """

    def __init__(
        self, program: Program, name: str, around: Around, function: str, columns: int
    ) -> None:
        """``columns``: so many of the inputs, the first ones, are columns."""
        super().__init__(program, name, Arena(), around, function)
        self._columns = columns
        self._margin = "        "
        self._rows = self._free("rows")

    def _header(self) -> tuple[str, str, str]:
        """The line that defines the function, and the names of its arguments."""
        columns, shared = self._free("columns"), self._free("shared")
        return f"def {self._name}({columns}, {shared}):", columns, shared

    def _opening(self, names: list[str]) -> list[str]:
        header, columns, shared = self._header()
        opening = [
            header,
            f"    {targets(names[self._columns :])} = {shared}",
            f"    {self._rows} = []",
        ]
        row = targets(names[: self._columns])
        number = self._free("row_number")
        around = self._around.row(number, self._bind)
        if not around:
            return [*opening, f"    for {row} in zip(*{columns}, strict=True):"]
        self._margin += "    "
        counted = f"    for {number}, ({row}) in enumerate(zip(*{columns}, strict=True)):"
        return [*opening, counted, f"        {around}"]

    def _output(self) -> str:
        return f"{self._rows}.append({self._results()})" if self._program.results else ""

    def _closing(self) -> list[str]:
        return [f"    return {self._rows}"]


class ColumnWriter(RowWriter):
    """Writes a function of the same results that does each op for all rows before the next op.

    Rows are independent of each other: which op of which row comes first changes nothing.
    """

    def __init__(
        self, program: Program, name: str, around: Around, function: str, columns: int
    ) -> None:
        super().__init__(program, name, around, function, columns)
        self._margin = "    "
        shared = program.placeholders[columns:]
        self._own = {node for node in program.nodes if node.op != "get_attr" and node not in shared}
        """The nodes of which each row has a value, as a list."""

    @staticmethod
    def fits(program: Program) -> bool:
        """True when all that the program does are calls of which each row has one."""
        return not any(
            node.meta.get(SKIPPED_BY) or is_pause(node) or effects.of(node).expects
            for node in program.nodes
        )

    def _opening(self, names: list[str]) -> list[str]:
        header, columns, shared = self._header()
        return [
            header,
            f"    {targets(names[: self._columns])} = {columns}",
            f"    {targets(names[self._columns :])} = {shared}",
        ]

    def _output(self) -> str:
        results = [self._column(item) for item in self._program.results]
        return f"return list(zip({', '.join(results)}))" if results else "return []"

    def _closing(self) -> list[str]:
        return []

    def _line(self, node: fx.Node) -> str:
        if node.op != "call_function":
            return super()._line(node)
        over = over_lists(node, self._own)
        if over is not None:
            return self._over_lists(node, over)
        return f"{node.name} = {self._for_each(node)}"

    def _over_lists(self, node: fx.Node, over: OverLists) -> str:
        args = [
            self._repeated(arg.tensor) if isinstance(arg, Repeated) else self._value(arg)
            for arg in over.args
        ]
        args += [f"{key}={self._value(value)}" for key, value in over.keywords.items()]
        call = f"{self._bind(over.function, over.function.__name__)}({', '.join(args)})"
        if over.written is None:
            return f"{node.name} = {call}"
        return f"{call}; {node.name} = {over.written.name}"

    def _for_each(self, node: fx.Node) -> str:
        """A list of what the call gives of each row, whose values have their columns' names."""
        read = [one.name for one in node.all_input_nodes if one in self._own]
        call = self._call(node)
        if len(read) == 1:
            return f"[{call} for {read[0]} in {read[0]}]"
        if read:
            return f"[{call} for {targets(read)} in zip({', '.join(read)})]"
        return f"[{call} for {self._free('_')} in {self._program.placeholders[0].name}]"

    def _column(self, value: Any) -> str:
        own = isinstance(value, fx.Node) and value in self._own
        return value.name if own else self._repeated(value)

    def _repeated(self, value: Any) -> str:
        return f"[{self._value(value)}] * len({self._program.placeholders[0].name})"
