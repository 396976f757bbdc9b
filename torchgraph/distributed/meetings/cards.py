"""What each rank says before a call, and what comes of it: the same on every rank."""

from __future__ import annotations

import enum
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import RanksDiffer


class Does(enum.Enum):
    """What a rank is about to do."""

    REPLAY = "run its program"
    EAGER = "run in eager"
    CONFIRM = "confirm its program"
    NOTHING = "confirm nothing"
    LOOK = "run in eager, and its program on copies"


RUNS = frozenset({Does.REPLAY, Does.CONFIRM, Does.LOOK})
"""What takes a program that all ranks have."""


class Card(NamedTuple):
    """What one rank says about its call."""

    graph: str
    """Which Graph it calls, in words that are equal on all ranks."""
    does: Does
    program: str = ""
    """A hash of the program and its options; of what is the same on all ranks in it."""
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
        """True where ranks that all say the same are right."""
        return all(list(mine) == list(used) for _, mine, used in self._reductions())

    def _reductions(self) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
        return ((ranks, *pair) for ranks, pairs in self.reduced.items() for pair in pairs)

    def text(self) -> str:
        """For the others."""
        return json.dumps([self.graph, self.does.name, *self[2:]])

    @classmethod
    def parse(cls, text: str) -> Card:
        """Read what `text` has written."""
        graph, does, *rest = json.loads(text)
        return cls(graph, Does[does], *rest)


class Verdict(NamedTuple):
    """What all ranks do."""

    goes: bool
    """Each does what it was about to do; else all run in eager."""
    differ: tuple[int, int] | None = None
    """Two ranks whose programs are to be the same and are not."""
    numbers: tuple[int, int] | None = None
    """Two ranks whose optimizers have other numbers."""
    stays: int | None = None
    """A rank that stays on aten, where others run Inductor's code: so all have to."""


def judge(cards: Mapping[int, Card], *, programs: bool = True) -> Verdict:
    """What comes of the cards, by rank.

    Args:
        programs: programs of equal inputs have to be the same, and the optimizers' numbers.

    Raises:
        RanksDiffer: they call different Graphs.
    """
    first = min(cards)
    for rank, card in cards.items():
        if card.graph != cards[first].graph:
            raise RanksDiffer(
                f"Rank {first} calls {cards[first].graph}, rank {rank} calls {card.graph}.",
                fix="let all ranks call the same Graphs in the same order.",
            )
    if not _reduce_what_is_used(cards):
        return Verdict(False)
    acts = {rank: card for rank, card in cards.items() if card.does in RUNS}
    if programs:
        differ = _apart(acts, lambda card: card.kind, lambda card: card.program) or _apart(
            acts, lambda card: card.kind + card.code, lambda card: card.passes
        )
        numbers = _apart(acts, lambda card: "", lambda card: card.numbers)
        if differ or numbers:
            return Verdict(False, differ, numbers)
        if len({card.code for card in acts.values()}) > 1:  # what they update would drift apart
            staying = (rank for rank, card in acts.items() if card.runs_on == "aten")
            return Verdict(False, stays=min(staying, default=None))
    return Verdict(len(acts) == len(cards) and _collectives_agree(cards))


def _apart(
    cards: Mapping[int, Card], of: Callable[[Card], str], said: Callable[[Card], str]
) -> tuple[int, int] | None:
    """The first two ranks that are of one kind and say different things."""
    met: dict[str, int] = {}
    for rank in sorted(cards):
        other = met.setdefault(of(cards[rank]), rank)
        if said(cards[other]) != said(cards[rank]):
            return other, rank
    return None


def _reduce_what_is_used(cards: Mapping[int, Card]) -> bool:
    """Whether the programs average those gradients that any of them has, and no others."""
    for card in cards.values():
        for ranks, pairs in card.reduced.items():
            members = [cards[int(rank)] for rank in ranks.split(",") if int(rank) in cards]
            for number, (_, used) in enumerate(pairs):
                theirs = [one.reduced.get(ranks, ()) for one in members]
                mine = [one[number][0] for one in theirs if number < len(one)]
                if sorted(set().union(*mine)) != sorted(used):
                    return False
    return True


def _collectives_agree(cards: Mapping[int, Card]) -> bool:
    """Whether the ranks of each group meet in the same collectives, in the same order."""
    for card in cards.values():
        for ranks, order in card.collectives.items():
            members = [int(rank) for rank in ranks.split(",")]
            if any(cards[m].collectives.get(ranks) != order for m in members if m in cards):
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
