"""What a process holds, read at intervals of a long loop, and whether that grows."""

from __future__ import annotations

import ctypes
import gc
import linecache
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLES = 24
_STRAY = 60
"""Objects: what Python and torch keep for reuse comes and goes by so many. One for each of the
200 Graphs, 133 of which are looked at, is more."""
_HEAP = 2 << 20
"""Bytes: the allocator gives memory back in larger pieces. 700 bytes a step of 3,000 are more, and
so are 16 KB for each of 200 Graphs."""


class Held(NamedTuple):
    """What the process holds at one time."""

    resident: int
    """Bytes."""
    objects: int
    """That the garbage collector knows."""
    files: int
    threads: int
    children: int
    temporary: int
    """Entries of the folder for temporary files that are torchgraph's."""
    sources: int
    """Texts of generated code, in linecache and in torch's cache."""


def resident() -> int:
    """Bytes of the process's own in memory, without what the allocator keeps free.

    Pages of files come and go by what is at work.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    _, pages, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (pages - shared) * _PAGE


def held() -> Held:
    """As things stand, after a collection."""
    gc.collect()
    sys._clear_type_cache()
    task = Path("/proc/self/task")
    children = (one / "children" for one in task.iterdir())
    loader: Any = torch.fx.graph_module._loader
    return Held(
        resident(),
        len(gc.get_objects()),
        len(os.listdir("/proc/self/fd")),
        threading.active_count() + len(list(task.iterdir())),
        sum(len(one.read_text().split()) for one in children),
        len(list(Path(tempfile.gettempdir()).glob("torchgraph-*"))),
        len(linecache.cache) + len(loader.eval_cache),
    )


def growth(step: Callable[[int], object], steps: int) -> Held:
    """How much more is held late in a loop than in the middle of it; its first third warms up.

    Of the samples of each half the median counts: a single one may meet a buffer in use.
    """
    first = steps // 3
    for number in range(first):
        step(number)
    samples: list[Held] = []
    due = [first + (steps - first) * sample // _SAMPLES for sample in range(1, _SAMPLES + 1)]
    for number in range(first, steps):
        step(number)
        if number + 1 in due:
            samples.append(held())
    half = len(samples) // 2
    early, late = samples[:half], samples[half:]
    return Held(*(_median(after) - _median(before) for before, after in _columns(early, late)))


def check(graph: Callable[[int], object], eager: Callable[[int], object], steps: int) -> None:
    """A Graph's loop grows by no more than eager's does, but for what is noise in any."""
    noise = growth(eager, steps)
    grown = growth(graph, steps)
    allowed = Held(max(noise.resident, 0) + _HEAP, max(noise.objects, 0) + _STRAY, 0, 0, 0, 0, 0)
    over = {
        name: (got, most)
        for name, got, most in zip(Held._fields, grown, allowed, strict=True)
        if got > most
    }
    assert not over, f"grown, and allowed: {over}"


def _columns(early: list[Held], late: list[Held]) -> list[tuple[list[int], list[int]]]:
    return [
        ([one[place] for one in early], [one[place] for one in late])
        for place in range(len(Held._fields))
    ]


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
