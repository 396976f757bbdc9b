"""`Each`, lowered: the body writes each row's states in place.

Rows of small tensors can run together, op by op over all of them: what an op costs besides its
kernel is then paid once. As many do so as stay in a core's cache from one op to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from torch import fx
from torch.fx.node import Argument

from ...ir.each import Each, by_output, run
from ...ir.effects import Effects
from ...ir.nodes import all_nodes, sequence
from ...ir.program import Program, Role
from ...ir.values import tensors_of
from ..lifetimes import Lifetimes, peak

Columns = Sequence[Sequence[object]]
RowsFunction = Callable[[Columns, Sequence[object]], Sequence[Sequence[object]]]
"""Takes columns and what is shared; returns what each row returns, or nothing."""

_SMALL = 32 * 2**10
"""Bytes of a row's largest tensor up to which it runs together with others."""
_TOGETHER = 512 * 2**10
"""Bytes of the tensors of rows that run together."""


class EachInPlace:
    """The target of a lowered node: as `Each`, but it returns no new values of columns."""

    effects = Effects(mutates=True)

    def __init__(
        self,
        each: Each,
        spare: Collection[int],
        body: Program,
        sizes: Sequence[Sequence[int]],
    ) -> None:
        """``spare``: columns that may be written over. ``body``: it writes in place.

        ``sizes``: for each column the bytes of each row.
        """
        self.__name__ = each.__name__
        self.rows = each.rows
        self.columns = each.columns
        self.body = body
        self._written = frozenset({*each.written, *spare})
        self._sizes = [sum(row) for row in zip(*sizes, strict=True)]
        self.together = _together([max(row) for row in zip(*sizes, strict=True)], self._sizes)
        """The numbers of rows that may run together."""

    def inner(self) -> list[fx.Node]:
        """The nodes of the body, which run once for each row."""
        return list(self.body.nodes)

    def writes(self, args: Sequence[Argument]) -> list[fx.Node]:
        """The arguments that a call writes: those of the columns that its rows write."""
        columns = enumerate(sequence(args[0]))
        return [node for i, column in columns if i in self._written for node in all_nodes(column)]

    def __str__(self) -> str:
        return f"{self.__name__}_"

    def __call__(self, columns: Columns, shared: Sequence[object]) -> list[object]:
        rows = zip(*columns, strict=True)
        return by_output([run(self.body, [*row, *shared]) for row in rows])

    @property
    def peak(self) -> int:
        """The most bytes that it allocates, as the body does for the row that it shows."""
        shown = sum(value.nbytes for value in tensors_of(self.body.placeholders[: self.columns]))
        together = (sum(self._sizes[row] for row in rows) for rows in self.together)
        most = max((*self._sizes, *together), default=0)
        return math.ceil(peak(Lifetimes(self.body)) * most / (shown or 1))

    def parts(
        self, columns: Sequence[Argument], together: Sequence[Sequence[int]]
    ) -> list[list[list[Argument]]]:
        """The columns of each group of rows that run together, and of the other rows last."""
        held = list(map(sequence, columns))
        rows = [*together, self._alone(together)]
        return [[[column[row] for row in part] for column in held] for part in rows]

    def calling(
        self,
        by_row: RowsFunction,
        by_column: RowsFunction | None = None,
        together: Sequence[Sequence[int]] = (),
    ) -> Callable[..., list[object]]:
        """A function that runs groups of `parts` by ``by_column``, the other rows by ``by_row``."""
        order = [row for part in (*together, self._alone(together)) for row in part]
        places = sorted(range(len(order)), key=order.__getitem__)

        def call(parts: Sequence[Columns], shared: Sequence[object]) -> list[object]:
            *groups, others = parts
            rows: list[Sequence[object]] = []
            for columns in groups:
                assert by_column is not None
                rows += by_column(columns, shared)
            rows += by_row(others, shared)
            return by_output([rows[place] for place in places] if rows else [])

        return call

    def _alone(self, together: Sequence[Sequence[int]]) -> list[int]:
        grouped = {row for rows in together for row in rows}
        return [row for row in range(len(self.rows)) if row not in grouped]


def _together(largest: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    room = 0
    for row, size in enumerate(sizes):
        if largest[row] > _SMALL:
            continue
        if not found or size > room:
            found.append([])
            room = _TOGETHER
        found[-1].append(row)
        room -= size
    return [rows for rows in found if len(rows) > 1]


def with_spare(body: Program, spare: Collection[int]) -> Program:
    """The body, with these columns as memory of its own."""
    specs = tuple(
        replace(spec, role=Role.ACCUMULATOR) if number in spare else spec
        for number, spec in enumerate(body.signature.inputs)
    )
    return Program(body.gm, replace(body.signature, inputs=specs))
