"""Counters of expensive events. Tests say "captured once over 100 calls"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """captures: traces of a build; lowers: programs made executable; replays: steps that ran, and
    those that were looked at.

    graph_captures, graph_replays: of CUDA Graphs, one for each part of a step with micro-batches;
    region_compiles: regions that Inductor had to compile; region_loads: codes of regions that were
    taken into use.
    """

    captures: int = 0
    lowers: int = 0
    graph_captures: int = 0
    graph_replays: int = 0
    replays: int = 0
    region_compiles: int = 0
    region_loads: int = 0

    @contextmanager
    def expect(self, **increments: int) -> Iterator[None]:
        """Assert that the block raises each named counter by exactly so much."""
        before = asdict(self)
        yield
        after = asdict(self)
        got = {name: after[name] - before[name] for name in increments}
        if got != increments:
            raise AssertionError(f"expected counter increments {increments}, got {got}")


counters = Counters()
