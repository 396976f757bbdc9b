"""Slots: offsets in one block for values of known lifetimes, so that none meets another.

The ways to choose are OneFlow's: by which value is placed first, and whether it takes the lowest
gap or the tightest. A limit leaves out what does not fit below it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..lifetimes import Allocation, live_bytes

ALIGNMENT = 64
"""The alignment of torch's CPU allocator: with another one, kernels may give other bits."""

_ROUNDS = 30
"""The number of attempts of `improve`."""

ORDERS: Mapping[str, Callable[[Allocation], tuple[int, int]]] = {
    "mem_size_first": lambda value: (-value.nbytes, value.born),
    "lifetime_first": lambda value: (value.born - value.dies, -value.nbytes),
    "time_line": lambda value: (value.born, -value.nbytes),
    "mem_volume_first": lambda value: (-value.nbytes * (1 + value.dies - value.born), value.born),
}
"""Name -> the key by which values are placed."""


@dataclass(frozen=True)
class OffsetAssignment:
    """Offsets in a block, and its size."""

    offsets: Mapping[Allocation, int]
    nbytes: int
    way: str = ""


def rounded(nbytes: int) -> int:
    """The bytes that a slot takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def least(values: Sequence[Allocation], length: int) -> int:
    """The lower bound of the bytes of any slot assignment; ``length`` nodes run."""
    return max(live_bytes(values, length, rounded), default=0)


def place(
    values: Sequence[Allocation],
    way: str,
    *,
    compact: bool = False,
    limit: int | None = None,
    first: Collection[Allocation] = (),
) -> OffsetAssignment:
    """The assignment by the name of an order.

    Args:
        compact: each takes the tightest gap that it fits into, not the lowest.
        limit: the most bytes; what does not fit is left out.
        first: those of the values that are placed before all others.
    """
    ahead = frozenset(first)
    ordered = sorted(values, key=lambda value: (value not in ahead, ORDERS[way](value)))
    name = f"{way}, compact" if compact else way
    return _in_order(ordered, name, compact=compact, limit=limit)


def best(values: Sequence[Allocation]) -> OffsetAssignment:
    """The smallest assignment of all ways; the first of equals."""
    found = [place(values, way, compact=compact) for way in ORDERS for compact in (False, True)]
    return min(found, key=lambda layout: layout.nbytes)


def improve(layout: OffsetAssignment, bound: int) -> OffsetAssignment:
    """Move the values at the top to the front of the order, while the block gets smaller."""
    order = list(layout.offsets)
    for _ in range(_ROUNDS):
        if layout.nbytes <= bound:
            break
        top = [v for v, at in layout.offsets.items() if at + rounded(v.nbytes) == layout.nbytes]
        order = [*top, *(value for value in order if value not in top)]
        for compact in (False, True):
            found = _in_order(order, f"{layout.way.removesuffix(', improved')}, improved", compact)
            if found.nbytes < layout.nbytes:
                layout = found
    return layout


def _in_order(
    ordered: Sequence[Allocation], way: str, compact: bool = False, limit: int | None = None
) -> OffsetAssignment:
    placed: list[tuple[int, int, Allocation]] = []
    """(start, end, value), by start."""
    size = 0
    for value in ordered:
        need = rounded(value.nbytes)
        taken = [entry for entry in placed if entry[2].meets(value)]
        start = _gap(taken, need, compact)
        if limit is not None and start + need > limit:
            continue
        bisect.insort(placed, (start, start + need, value), key=lambda entry: entry[:2])
        size = max(size, start + need)
    return OffsetAssignment({value: start for start, _, value in placed}, size, way)


def _gap(taken: Sequence[tuple[int, int, Allocation]], need: int, compact: bool) -> int:
    """The offset of ``need`` free bytes between the taken ones, or behind them."""
    found: list[tuple[int, int]] = []
    """(room that is left over, start)."""
    end = 0
    for start, stop, _ in taken:
        if start - end >= need:
            found.append((start - end - need, end))
            if not compact:
                break
        end = max(end, stop)
    return min(found)[1] if found else end
