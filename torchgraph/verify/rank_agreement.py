"""Common decisions of ranks in a check of a step that communicates.

A check runs programs several times, and how often depends on what it finds. Each run of a program
that communicates is one of all ranks. So whether there is another is decided by all, and a rank
that has found nothing takes part in the search for what another has.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

from torch import fx

from .._torch import OpOverload, schema_of
from ..distributed import ranks
from ..distributed.errors import RanksOutOfStep
from ..ir import effects
from ..ir.program import Program
from ..ir.values import tensors_of
from ..lower.agreements import communicates

Found = TypeVar("Found")


class SingleRank:
    """Decisions of a check of a step without communication: by this rank alone."""

    is_single = True

    def all_gather(self, value: Found) -> list[Found]:
        """``value`` of each rank, in order."""
        return [value]

    def any(self, flag: bool) -> bool:
        """True where the flag is set on any rank."""
        return any(self.all_gather(flag))

    def most(self, number: int) -> int:
        """The largest number of all ranks."""
        return max(self.all_gather(number))

    def alike(self, value: object) -> bool:
        """True where all ranks have equal values."""
        first, *others = self.all_gather(value)
        return all(other == first for other in others)

    def same(self, what: str, lines: Sequence[str]) -> None:
        """Raise RanksOutOfStep, on all ranks, where their lines differ."""
        told = self.all_gather(list(lines))
        for rank, other in enumerate(told):
            for number, pair in enumerate(itertools.zip_longest(told[0], other), start=1):
                if pair[0] != pair[1]:
                    mine, its = (one or "nothing more" for one in pair)
                    raise RanksOutOfStep(
                        f"graph.check() runs {what} on all ranks at once, and line {number} of it "
                        f"differs: rank 0 has {mine}, rank {rank} has {its}."
                    )

    def first(self, place: int, found: Found | None) -> tuple[int | None, Found] | None:
        """(rank, its finding) for the finding whose ``place`` is the first; None for none."""
        told = enumerate(self.all_gather((place, found)))
        ones = [(at, rank, one) for rank, (at, one) in told if one is not None]
        if not ones:
            return None
        _, rank, one = min(ones, key=lambda entry: entry[:2])
        return (None if self.is_single else rank), one


class AllRanks(SingleRank):
    """Decisions of a check by all ranks of the default process group."""

    is_single = False

    def all_gather(self, value: Found) -> list[Found]:
        """``value`` of each rank, in order; every rank has to call."""
        return ranks.all_gather(value)


def deciding(programs: Sequence[Program]) -> SingleRank:
    """The decisions for a check of these programs: of one rank, or of all."""
    return AllRanks() if any(map(communicates, programs)) else SingleRank()


def collectives_of(program: Program) -> list[str]:
    """The collectives of a program in order, as lines that have to be equal on all ranks."""
    return [_line(node) for node in program.nodes if effects.of(node).communicates]


def _line(node: fx.Node) -> str:
    """The op with its arguments besides tensors and group names, and the shapes of tensors."""
    op = node.target
    names = [one.name for one in schema_of(op).arguments] if isinstance(op, OpOverload) else []
    given = [
        str(value)
        for name, value in (*zip(names, node.args, strict=False), *node.kwargs.items())
        if name != "group_name" and not isinstance(value, (fx.Node, list, tuple))
    ]
    shapes = [f"{one.dtype}{list(one.shape)}" for one in tensors_of(list(node.args))]
    return f"{op}({', '.join([*shapes, *given])})".replace("torch.", "")
