"""The random engines of C++ that OneFlow's readers draw from: equal seeds give equal orders."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

T = TypeVar("T")
_BITS = 0xFFFFFFFF
_MODULUS = 2147483647
_EPOCHS_START_AT = 524287
"""OneFlow shuffles the files of epoch n with this number + n as the seed."""


def seed_sequence(seed: int, count: int) -> list[int]:
    """``std::seed_seq{seed}``: ``count`` numbers of 32 bits, at least 4 and at most 38."""
    values, held = [seed & _BITS], [0x8B8B8B8B] * count
    lag = 3 if count >= 7 else (count - 1) // 2
    first = (count - lag) // 2
    second = first + lag
    rounds = max(len(values) + 1, count)
    for k in range(rounds):
        here, near, far = k % count, (k + first) % count, (k + second) % count
        mixed = held[here] ^ held[near] ^ held[(k - 1) % count]
        one = 1664525 * (mixed ^ (mixed >> 27)) & _BITS
        added = len(values) if k == 0 else here + (values[k - 1] if k <= len(values) else 0)
        two = one + added & _BITS
        held[near] = held[near] + one & _BITS
        held[far] = held[far] + two & _BITS
        held[here] = two
    for k in range(rounds, rounds + count):
        here, near, far = k % count, (k + first) % count, (k + second) % count
        mixed = held[here] + held[near] + held[(k - 1) % count] & _BITS
        one = 1566083941 * (mixed ^ (mixed >> 27)) & _BITS
        two = one - here & _BITS
        held[near] ^= one
        held[far] ^= two
        held[here] = two
    return held


class DefaultEngine:
    """libstdc++'s ``std::default_random_engine``, seeded by a ``std::seed_seq``."""

    def __init__(self, seed: int) -> None:
        self._now = seed_sequence(seed, 4)[3] % _MODULUS or 1

    def below(self, count: int) -> int:
        """``std::uniform_int_distribution<>(0, count - 1)``."""
        width = (_MODULUS - 2) // count
        while True:
            self._now = self._now * 16807 % _MODULUS
            if self._now - 1 < width * count:
                return (self._now - 1) // width


def shuffled(items: list[T], epoch: int) -> list[T]:
    """``std::shuffle`` of libstdc++ with OneFlow's engine for an epoch."""
    return shuffled_by(np.random.RandomState(_EPOCHS_START_AT + epoch), items)


def shuffled_by(engine: np.random.RandomState, items: list[T]) -> list[T]:
    """``std::shuffle`` of libstdc++ by a ``std::mt19937``."""
    found = list(items)

    def below(count: int) -> int:
        width = _BITS // count
        while True:
            drawn = int(engine.randint(0, _BITS + 1, dtype=np.uint32))
            if drawn < width * count:
                return drawn // width

    def swap(first: int, second: int) -> None:
        found[first], found[second] = found[second], found[first]

    if _BITS // max(len(found), 1) < len(found):
        for here in range(1, len(found)):
            swap(here, below(here + 1))
        return found
    here = 1
    if len(found) and len(found) % 2 == 0:
        swap(here, below(2))
        here = 2
    while here < len(found):
        drawn, second = below((here + 1) * (here + 2)), here + 2
        swap(here, drawn // second)
        swap(here + 1, drawn % second)
        here += 2
    return found
