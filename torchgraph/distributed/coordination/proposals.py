"""Proposals of all ranks before a call, and the decision on them: the same on every rank."""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import RanksDiffer


class Action(enum.Enum):
    """Actions that a rank may propose for its call."""

    REPLAY = "run its program"
    EAGER = "run in eager"
    CONFIRM = "confirm its program"
    NOTHING = "confirm nothing"
    SPOT_CHECK = "run in eager, and its program on copies"


RUNS = frozenset({Action.REPLAY, Action.CONFIRM, Action.SPOT_CHECK})
"""Actions that run a program, which all ranks have to have."""


class Proposal(NamedTuple):
    """The action that one rank proposes, with hashes of everything that ranks have to agree on."""

    graph: str
    """The Graph that is called, in words that are equal on all ranks."""
    does: Action
    program: str = ""
    """A hash of the program and its options, without what may differ between ranks."""
    passes: str = ""
    """A hash of its passes."""
    runs_on: str = ""
    """See `Replay.runs_on`."""
    kind: str = ""
    """A hash of the inputs' shapes: programs of equal inputs are equal."""
    numbers: str = ""
    """A hash of the optimizers' numbers."""
    collectives: Mapping[str, str] = {}
    """Ranks of a group -> a hash of the collectives over it, in order."""
    reduced: Mapping[str, Sequence[tuple[Sequence[int], Sequence[int]]]] = {}
    """Ranks of a group -> (parameters with gradients here, those for which it reduces any)."""

    @property
    def code(self) -> str:
        """``aten`` or ``inductor``."""
        return self.runs_on.partition(" ")[0]

    @property
    def stands_alone(self) -> bool:
        """True where equal proposals may run: each reduces exactly the gradients that it has."""
        return all(list(mine) == list(used) for _, mine, used in self._reductions())

    def _reductions(self) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
        return ((ranks, *pair) for ranks, pairs in self.reduced.items() for pair in pairs)

    def text(self) -> str:
        """The proposal as JSON, for the other ranks."""
        return json.dumps([self.graph, self.does.name, *self[2:]])

    @classmethod
    def parse(cls, text: str) -> Proposal:
        """The proposal that `text` has written."""
        graph, does, *rest = json.loads(text)
        return cls(graph, Action[does], *rest)


class Decision(NamedTuple):
    """The decision of all ranks: whether each runs what it proposed."""

    goes: bool
    """Each does what it was about to do; else all run in eager."""
    differ: tuple[int, int] | None = None
    """Two ranks whose programs are to be the same and are not."""
    numbers: tuple[int, int] | None = None
    """Two ranks whose optimizers have other numbers."""
    stays: int | None = None
    """A rank that stays on aten, where others run Inductor's code: so all have to."""


def decide(proposals: Mapping[int, Proposal], *, programs: bool = True) -> Decision:
    """The decision on ``proposals``, by rank.

    Args:
        programs: programs of equal inputs have to be the same, and the optimizers' numbers.

    Raises:
        RanksDiffer: they call different Graphs.
    """
    first = min(proposals)
    for rank, proposal in proposals.items():
        if proposal.graph != proposals[first].graph:
            raise RanksDiffer(
                f"Rank {first} calls {proposals[first].graph}, rank {rank} calls {proposal.graph}.",
                fix="let all ranks call the same Graphs in the same order.",
            )
    if not _reduce_what_is_used(proposals):
        return Decision(False)
    running = {rank: one for rank, one in proposals.items() if one.does in RUNS}
    if programs:
        differ = _apart(running, lambda one: one.kind, lambda one: one.program)
        differ = differ or _apart(running, lambda one: one.kind + one.code, lambda one: one.passes)
        numbers = _apart(running, lambda one: "", lambda one: one.numbers)
        if differ or numbers:
            return Decision(False, differ, numbers)
        codes = {one.code for one in running.values()}
        if len(codes) > 1:  # parameters updated by different code would diverge
            staying = (rank for rank, one in running.items() if one.runs_on == "aten")
            return Decision(False, stays=min(staying, default=None))
    return Decision(len(running) == len(proposals) and _collectives_agree(proposals))


def _apart(
    proposals: Mapping[int, Proposal],
    of: Callable[[Proposal], str],
    said: Callable[[Proposal], str],
) -> tuple[int, int] | None:
    """The first two ranks with equal ``of`` and different ``said``."""
    met: dict[str, int] = {}
    for rank in sorted(proposals):
        other = met.setdefault(of(proposals[rank]), rank)
        if said(proposals[other]) != said(proposals[rank]):
            return other, rank
    return None


def _reduce_what_is_used(proposals: Mapping[int, Proposal]) -> bool:
    """True when the programs average the gradients that any of them has, and no others."""
    for proposal in proposals.values():
        for ranks, pairs in proposal.reduced.items():
            members = [proposals[int(rank)] for rank in ranks.split(",") if int(rank) in proposals]
            for number, (_, used) in enumerate(pairs):
                theirs = [one.reduced.get(ranks, ()) for one in members]
                mine = [one[number][0] for one in theirs if number < len(one)]
                if sorted(set().union(*mine)) != sorted(used):
                    return False
    return True


def _collectives_agree(proposals: Mapping[int, Proposal]) -> bool:
    """True when the ranks of each group run the same collectives over it in the same order."""
    for proposal in proposals.values():
        for ranks, order in proposal.collectives.items():
            members = [int(rank) for rank in ranks.split(",")]
            if any(proposals[m].collectives.get(ranks) != order for m in members if m in proposals):
                return False
    return True


def first_difference(ranks: tuple[int, int], texts: Sequence[str]) -> str:
    """The first line that two texts differ in, from both."""
    pairs = itertools.zip_longest(*(text.splitlines() for text in texts), fillvalue="(no more)")
    for number, (one, other) in enumerate(pairs, 1):
        if one != other:
            return (
                f"Line {number} on rank {ranks[0]}:\n    {one.strip()}\n  on rank {ranks[1]}:\n"
                f"    {other.strip()}"
            )
    return "no line differs"
