"""The constants of this machine, found on some models; the others are predicted with them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch

from torchgraph.costs.timeline import CONVOLUTION, PRODUCT, Rates, Wire, timeline

from .ranks import Measured

Found = TypeVar("Found", "Here", "Crowd")

GROUP = "0"
"""The name of the group of all ranks."""
CACHE = 2**19
"""Bytes that an op may move and find in a processor's own cache."""
TRIES = 800
"""So many changes of the constants are tried."""


@dataclass(frozen=True)
class Crowd:
    """What several ranks on one machine do to each other."""

    ranks: int
    slower: float = 1.0
    """How much longer a rank computes than alone: there may be fewer processors than ranks."""
    memory: float = 1.0
    """How much longer it waits for what comes from memory besides, or from the shared cache."""
    bytes: float = 2e9
    """That a rank sends in a second, while all of them do."""
    message: float = 2e-4
    """Seconds from one rank to the next."""
    skew: float = 1e-3
    """Seconds that the first in a step waits for the last, which woke up later."""


@dataclass(frozen=True)
class Here:
    """This machine, one thread a rank."""

    product: float = 90e9
    convolution: float = 40e9
    attention: float = 50e9
    product_start: float = 5e-6
    convolution_start: float = 5e-5
    memory: float = 8e9
    shared: float = 25e9
    """Bytes in a second of what the cache holds that all processors share."""
    cached: float = 60e9
    """The same of a processor's own."""
    function: float = 1.2e9
    launch: float = 4e-6
    view: float = 1.5e-6
    holds: float = 16e6
    """Bytes that the shared cache holds for all ranks together."""
    crowds: tuple[Crowd, ...] = ()

    def rates(self, works_on: float, crowd: Crowd) -> Rates:
        """Of a rank among others.

        Args:
            works_on: bytes that a rank touches in a step. What does not fit comes from memory.
        """
        slower = crowd.slower
        near = min(1.0, self.holds / works_on)
        moved = 1 / (near / self.shared + (1 - near) / self.memory) / crowd.memory
        return Rates(
            {torch.float32: self.product / slower},
            moved / slower,
            self.launch * slower,
            self.view * slower,
            convolution=self.convolution / slower,
            attention=self.attention / slower,
            starts={
                PRODUCT: self.product_start * slower,
                CONVOLUTION: self.convolution_start * slower,
            },
            function=self.function / slower,
            cached=self.cached / slower,
            cache=CACHE,
        )

    def seconds(self, one: Measured) -> float:
        """What a step is predicted to take."""
        crowd = next((c for c in self.crowds if c.ranks == one.ranks), Crowd(one.ranks))
        wire = Wire(one.ranks, crowd.bytes, crowd.message, "gloo")
        rates = self.rates(one.works_on, crowd)
        found = timeline(one.items, rates, {GROUP: wire})
        return found.seconds + (crowd.skew if found.communicating else 0.0)


def fitted(measured: Iterable[Measured]) -> Here:
    """The constants that come nearest to what was measured: those of one rank first.

    What several do to each other is then found for each number of them.
    """
    by_ranks: dict[int, list[Measured]] = {}
    for one in measured:
        by_ranks.setdefault(one.ranks, []).append(one)
    alone = by_ranks.pop(1)
    names = [name for name in asdict(Here()) if name != "crowds"]
    here = _nearest(Here(), names, lambda tried: _error(tried, alone))
    crowds = []
    for ranks, ones in sorted(by_ranks.items()):

        def error(tried: Crowd, ones: list[Measured] = ones) -> float:
            return _error(replace(here, crowds=(tried,)), ones)

        crowd = Crowd(ranks, slower=max(1.0, ranks / 2))
        crowds.append(_nearest(crowd, ["slower", "memory", "bytes", "message", "skew"], error))
    return replace(here, crowds=tuple(crowds))


def ratios(here: Here, measured: Iterable[Measured]) -> Mapping[tuple[str, int], float]:
    """Predicted over measured, by case and ranks."""
    return {(one.case, one.ranks): here.seconds(one) / one.seconds for one in measured}


def _error(here: Here, measured: Iterable[Measured]) -> float:
    return sum(math.log(ratio) ** 2 for ratio in ratios(here, measured).values())


def _nearest(start: Found, names: list[str], error: Callable[[Found], float]) -> Found:
    """Constants near ``start`` with a smaller error: what helps is kept, in steps that adapt.

    A hundredth of the squared logarithm of how far each has moved counts as error, too: what no
    model tells stays as it was.
    """
    draw = random.Random(0)
    first = {name: math.log(getattr(start, name)) for name in names}

    def judged(logs: dict[str, float]) -> float:
        return error(_with(start, logs)) + 1e-2 * sum(
            (logs[name] - first[name]) ** 2 for name in names
        )

    best, least, step = first, judged(first), 0.5
    for _ in range(TRIES):
        tried = {n: v + step * draw.gauss(0, 1) * (draw.random() < 0.4) for n, v in best.items()}
        found = judged(tried)
        if found < least:
            best, least, step = tried, found, step * 1.3
        else:
            step = max(0.01, step * 0.97)
    return _with(start, best)


def _with(start: Found, logs: Mapping[str, float]) -> Found:
    values: dict[str, Any] = {name: math.exp(value) for name, value in logs.items()}
    return replace(start, **values)
