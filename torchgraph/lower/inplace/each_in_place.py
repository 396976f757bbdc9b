"""`Each`, lowered: the body writes each row's states in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from torch import fx
from torch.fx.node import Argument

from ...ir.each import Each, by_output, run
from ...ir.effects import Effects
from ...ir.nodes import all_nodes, sequence
from ...ir.program import Program, Role
from ..lifetimes import Lifetimes, peak

Columns = Sequence[Sequence[object]]
RowsFunction = Callable[[Columns, Sequence[object]], Sequence[Sequence[object]]]
"""Takes columns and what is shared; returns what each row returns, or nothing."""


class EachInPlace:
    """The target of a lowered node: as `Each`, but it returns no new values of columns."""

    effects = Effects(mutates=True)

    def __init__(
        self, each: Each, spare: Collection[int], lower: Callable[[Program], Program]
    ) -> None:
        """``spare``: columns that may be written over. ``lower`` makes a body write in place."""
        self.__name__ = each.__name__
        self.rows = each.rows
        self.columns = each.columns
        self.body = lower(_with_spare(each.body, spare))
        self._written = frozenset({*each.written, *spare})

    def inner(self) -> list[fx.Node]:
        """The calls that one of it makes, for each row."""
        return list(self.body.nodes)

    def writes(self, args: Sequence[Argument]) -> list[fx.Node]:
        """The arguments that a call writes: those of the columns that its rows write."""
        columns = enumerate(sequence(args[0]))
        return [node for i, column in columns if i in self._written for node in all_nodes(column)]

    def __str__(self) -> str:
        return f"{self.__name__}_"

    def __call__(self, columns: Columns, shared: Sequence[object]) -> list[object]:
        return self.calling(self._row_by_row)(columns, shared)

    def _row_by_row(self, columns: Columns, shared: Sequence[object]) -> list[tuple[object, ...]]:
        return [run(self.body, [*row, *shared]) for row in zip(*columns, strict=True)]

    @property
    def peak(self) -> int:
        """The most bytes that a row allocates: the body was written for the largest."""
        return peak(Lifetimes(self.body))

    def calling(self, function: RowsFunction) -> Callable[..., list[object]]:
        """The call, the rows by ``function``."""

        def call(columns: Columns, shared: Sequence[object]) -> list[object]:
            return by_output(function(columns, shared))

        return call


def _with_spare(body: Program, spare: Collection[int]) -> Program:
    specs = tuple(
        replace(spec, role=Role.ACCUMULATOR) if number in spare else spec
        for number, spec in enumerate(body.signature.inputs)
    )
    return Program(body.gm, replace(body.signature, inputs=specs))
