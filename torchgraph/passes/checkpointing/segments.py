"""Segments: cuts the forward where few bytes cross, as regions that the backward can repeat.

To keep what crosses the cuts and to recompute one segment at a time is the classic trade of memory
for time: T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import fx

from .recompute import CheckpointedRegion, bytes_by_storage, is_forward

_PARTS = (*range(2, 17), *range(18, 33, 2), *range(36, 65, 4))
"""Into how many equal parts the kept bytes are tried to be cut."""


@dataclass(frozen=True)
class Activation:
    """The memory of an activation: from the op that makes it to the last forward op that reads."""

    born: int
    last: int
    size: int
    """Bytes."""
    kept: bool
    """True when the backward reads it."""
    maker: fx.Node


@dataclass(frozen=True)
class Segments:
    """A way to cut: the first place of each segment but the first, and what it costs."""

    cuts: tuple[int, ...]
    crossing: int
    """Bytes that cross a cut: they stay kept."""
    largest: int
    """Bytes that the largest segment keeps besides, while it is repeated."""

    @property
    def peak(self) -> int:
        """The most that is held for the backward at a time, in bytes."""
        return self.crossing + self.largest


def values_of(nodes: Sequence[fx.Node]) -> list[Activation]:
    """The memories that ``nodes``, forward ops in order, make."""
    place = {node: i for i, node in enumerate(nodes)}
    made: dict[int, tuple[fx.Node, int]] = {}
    last: dict[int, int] = {}
    kept: set[int] = set()
    for i, node in enumerate(nodes):
        for storage, size in bytes_by_storage(node).items():
            made.setdefault(storage, (node, size))
            for user in node.users:
                if user in place:
                    last[storage] = max(last.get(storage, i), place[user])
                elif not is_forward(user) and user.op == "call_function":
                    kept.add(storage)
    return [
        Activation(place[maker], last.get(storage, place[maker]), size, storage in kept, maker)
        for storage, (maker, size) in made.items()
    ]


def cheapest(values: Sequence[Activation], count: int) -> Segments:
    """The way to cut ``count`` ops that has the smallest peak of those tried."""
    total = sum(value.size for value in values if value.kept)
    tried = [_measured(values, (), count)]
    tried += [_measured(values, _cut(values, count, total / parts), count) for parts in _PARTS]
    return min(tried, key=lambda found: (found.peak, len(found.cuts)))


def regions_of(
    nodes: Sequence[fx.Node], cuts: Sequence[int], first: int
) -> dict[fx.Node, CheckpointedRegion]:
    """The segments as regions, numbered from ``first``."""
    bounds = [0, *cuts, len(nodes)]
    found: dict[fx.Node, CheckpointedRegion] = {}
    for number, (start, end) in enumerate(pairwise(bounds)):
        region = CheckpointedRegion(f"segment {number + 1} of {len(bounds) - 1}", first + number)
        found.update((node, region) for node in nodes[start:end])
    return found


def crosses(value: Activation, cuts: Sequence[int]) -> bool:
    """True when a value is made before a cut and read in the forward after it."""
    return any(value.born < cut <= value.last for cut in cuts)


def _cut(values: Sequence[Activation], count: int, size: float) -> tuple[int, ...]:
    """Cuts after about ``size`` kept bytes each, where the fewest bytes cross."""
    born = [0] * count
    change = [0] * (count + 1)
    for value in values:
        born[value.born] += value.size if value.kept else 0
        change[value.born + 1] += value.size
        if value.last + 1 <= count:
            change[value.last + 1] -= value.size
    cuts: list[int] = []
    start, live = 0, [0] * (count + 1)
    for place in range(1, count + 1):
        live[place] = live[place - 1] + change[place]
    while True:
        held, best = 0, 0
        for place in range(start, count - 1):
            held += born[place]
            if held > 1.25 * size and best:
                break
            if held >= 0.75 * size and (not best or live[place + 1] < live[best]):
                best = place + 1
        else:
            return tuple(cuts)
        cuts.append(best)
        start = best


def _measured(values: Sequence[Activation], cuts: tuple[int, ...], count: int) -> Segments:
    bounds = [0, *cuts, count]
    crossing = 0
    held = [0] * (len(bounds) - 1)
    segment = [0] * count
    for number, (start, end) in enumerate(pairwise(bounds)):
        segment[start:end] = [number] * (end - start)
    for value in values:
        if crosses(value, cuts):
            crossing += value.size
        elif value.kept:
            held[segment[value.born]] += value.size
    return Segments(cuts, crossing, max(held))
