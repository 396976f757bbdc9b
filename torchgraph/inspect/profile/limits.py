"""Memory bandwidth and matrix product rate of this machine, measured once a process."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

LEAST_BLOCK = 2**20
MOST_BLOCK = 2**28
"""Bytes of the blocks that are moved; in between it is about what the step moves, so that the rate
is that of the same cache."""
_SIDES = (256, 512, 1024, 2048)
"""The square matrices that are multiplied."""
_LONG = 0.03
"""Seconds: larger products than one of that time are not tried."""
_PIECE = 32768
"""Elements that one thread copies. Where others use the machine, threads wait for each other."""
_RUNS = 20
_SECONDS = 0.06
_MOST_SECONDS = 0.5
"""How often a way to move memory, or a product, is timed: until both of the first, or the last.

The best of many short runs: where others use the machine, few of them meet nobody."""


class Bandwidth(NamedTuple):
    """Bytes read and written in a second, over blocks of so many bytes."""

    copy: float
    """By a copy: a byte that is read and one that is written are two."""
    fastest: float
    """By the fastest of a copy, a sum and an addition in place.

    A CPU fetches what a copy overwrites, and so moves more than it counts: what only reads, or
    writes what it has read, may be faster by the byte. Nothing a step does is faster than this.
    """
    block: int


def bandwidth(device: torch.device, moved: int) -> Bandwidth:
    """The bandwidth for a step that moves so many bytes."""
    size = min(max(moved, LEAST_BLOCK), MOST_BLOCK)
    return _bandwidth(device, 2 ** int(math.log2(size)), torch.get_num_threads())


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs in a second of the fastest matrix product, a multiply-add as two."""
    how = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    return _product_rate(device, dtype, *how)


@functools.cache
def _bandwidth(device: torch.device, block: int, threads: int) -> Bandwidth:
    with torch.no_grad():
        whole = torch.ones(block // 4, device=device)
        source, target = whole.chunk(2)
        pieces = list(zip(source.split(_PIECE), target.split(_PIECE), strict=True))
        copied = min(
            _seconds(lambda: target.copy_(source), device),
            _seconds(lambda: [there.copy_(here) for here, there in pieces], device),
        )
        summed = _seconds(lambda: whole.sum(), device)
        added = _seconds(lambda: target.mul_(0.5).add_(source), device)
    # In place: a product reads and writes a half, a sum reads both and writes one.
    rates = (block / copied, block / summed, 2.5 * block / added)
    return Bandwidth(rates[0], max(rates), block)


@functools.cache
def _product_rate(device: torch.device, dtype: torch.dtype, threads: int, precision: str) -> float:
    best = 0.0
    with torch.no_grad():
        for side in _SIDES:
            left = torch.full((side, side), 0.5, device=device).to(dtype)
            seconds = _seconds(lambda matrix=left: matrix @ matrix, device)  # type: ignore[misc]
            best = max(best, 2 * side**3 / seconds)
            if seconds > _LONG:
                break
    return best


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call: the least of several measurements."""
    call()
    least = math.inf
    for _ in repeated(_RUNS, _SECONDS, _MOST_SECONDS):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        least = min(least, time.perf_counter() - start)
    return least


def repeated(least: int, seconds: float, long: float, most: float = math.inf) -> Iterator[int]:
    """Numbers of runs, until there are the least of them and the seconds are over.

    Args:
        long: three are enough once so many seconds are over.
        most: runs after which it ends in any case.
    """
    began = time.perf_counter()
    for run in itertools.count():
        took = time.perf_counter() - began
        is_enough = run >= 3 if took > long else run >= least and took > seconds
        if is_enough or run >= most:
            return
        yield run


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
