"""The padded dimension in shapes: each dimension as factors of (real, padded) sizes.

A batch of 5 rows in a bucket of 8 is the factor (5, 8). Flattened with the 3 steps behind it, the
dimension is (15, 24): its first 15 entries are the real ones. Flattened with the 3 steps before it,
it stays two factors, (3, 3) and (5, 8): the real entries are the corner of that 3 x 8 array.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]
"""The size of a dimension in the call as it is, and in the padded call."""
Factors = tuple[Pair, ...]
"""The sizes whose product a dimension is, the slowest first.

More than one only where a padded one is not the slowest.
"""
Dims = tuple[Factors, ...]

ONE: Factors = ((1, 1),)


def single(pair: Pair) -> Factors:
    """A dimension whose first entries are the real ones."""
    return (pair,)


def size(factors: Factors) -> Pair:
    """The size of a dimension in both calls."""
    real = padded = 1
    for one, other in factors:
        real, padded = real * one, padded * other
    return real, padded


def is_padded(factors: Factors) -> bool:
    """True when the dimension is longer in the padded call."""
    return any(real != padded for real, padded in factors)


def padded(dims: Dims) -> frozenset[int]:
    """The positions of the dimensions that are longer in the padded call."""
    return frozenset(i for i, factors in enumerate(dims) if is_padded(factors))


def pairs(real: Sequence[int], padded: Sequence[int]) -> tuple[Pair, ...]:
    """The sizes of each dimension in both calls."""
    return tuple(zip(map(int, real), map(int, padded), strict=True))


def plain(shape: Sequence[Pair]) -> Dims:
    """Dimensions of which each starts with its real entries."""
    return tuple(map(single, shape))


def reshape(dims: Dims, shape: Sequence[Pair]) -> Dims | None:
    """The dimensions after a view; None when the real entries would be no corner any more."""
    if any(0 in pair for pair in shape):
        return None
    pending = [factor for factors in dims for factor in factors if factor != (1, 1)]
    found: list[Factors] = []
    for pair in shape:
        taken = _take(pending, pair)
        if taken is None:
            return None
        found.append(_merged(taken))
    return None if pending else tuple(found)


def _take(pending: list[Pair], wanted: Pair) -> list[Pair] | None:
    """Factors from the front of ``pending`` whose product is ``wanted``, the last one split."""
    taken: list[Pair] = []
    real, padded = wanted
    while (real, padded) != (1, 1):
        if not pending:
            return None
        first = pending.pop(0)
        if real % first[0] == 0 and padded % first[1] == 0:
            taken.append(first)
            real, padded = real // first[0], padded // first[1]
            continue
        faster = first[0] // real
        if (real * faster, padded * faster) != first:
            return None
        taken.append((real, padded))
        pending.insert(0, (faster, faster))
        real = padded = 1
    return taken


def _merged(factors: Sequence[Pair]) -> Factors:
    """Entries of a factor that is the same in both calls follow those of the one before it."""
    found: list[Pair] = []
    for real, padded in factors:
        if real == padded and found:
            found[-1] = (found[-1][0] * real, found[-1][1] * padded)
        else:
            found.append((real, padded))
    return tuple(found) or ONE
