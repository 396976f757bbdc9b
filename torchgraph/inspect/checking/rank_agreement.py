"""What the ranks of a step that communicates decide together while they check it.

A check runs programs several times, and how often depends on what it finds. Each run of a program
that communicates is one of all ranks. So whether there is another is decided by all, and a rank
that has found nothing takes part in the search for what another has.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

from torch import fx

from ..._torch import OpOverload, schema_of
from ...distributed import ranks
from ...distributed.errors import RanksOutOfStep
from ...ir import effects
from ...ir.program import Program
from ...ir.values import tensors_of

Found = TypeVar("Found")


class SingleRank:
    """A step that communicates with nobody decides by itself."""

    is_single = True
    rank: int | None = None

    def all_gather(self, value: Found) -> list[Found]:
        """What each rank says, in order."""
        return [value]

    def any(self, flag: bool) -> bool:
        """True where it is so on some rank."""
        return any(self.all_gather(flag))

    def most(self, number: int) -> int:
        """The largest number."""
        return max(self.all_gather(number))

    def alike(self, value: object) -> bool:
        """True where all ranks say the same."""
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
        """What the rank has found whose ``place`` in the program is the first, and which it is."""
        told = enumerate(self.all_gather((place, found)))
        ones = [(at, rank, one) for rank, (at, one) in told if one is not None]
        if not ones:
            return None
        _, rank, one = min(ones, key=lambda entry: entry[:2])
        return (None if self.is_single else rank), one


class AllRanks(SingleRank):
    """All ranks of the default process group, which have called ``graph.check()``."""

    is_single = False

    def __init__(self) -> None:
        self.rank = ranks.rank()

    def all_gather(self, value: Found) -> list[Found]:
        """What each rank says: all have to come here."""
        return ranks.all_gather(value)


def deciding(programs: Sequence[Program]) -> SingleRank:
    """Who decides on a check of these programs."""
    return AllRanks() if any(map(communicates, programs)) else SingleRank()


def communicates(program: Program) -> bool:
    """True for a program with a collective."""
    return any(effects.of(node).communicates for node in program.nodes)


def collectives_of(program: Program) -> list[str]:
    """The collectives of a program in their order: what ranks have to have in common."""
    return [_line(node) for node in program.nodes if effects.of(node).communicates]


def _line(node: fx.Node) -> str:
    """The op, what it is given besides tensors, and shapes; groups have a name on each rank."""
    op = node.target
    names = [one.name for one in schema_of(op).arguments] if isinstance(op, OpOverload) else []
    given = [
        str(value)
        for name, value in (*zip(names, node.args, strict=False), *node.kwargs.items())
        if name != "group_name" and not isinstance(value, (fx.Node, list, tuple))
    ]
    shapes = [f"{one.dtype}{list(one.shape)}" for one in tensors_of(list(node.args))]
    return f"{op}({', '.join([*shapes, *given])})".replace("torch.", "")
