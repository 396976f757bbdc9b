"""Timing of a step: as a whole, and call by call, on copies of its inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ..._torch import below_autograd
from ...ir.copies import copied
from ...live.inputs import Call
from ...lower import Clock, Lowered, Span, variant
from ...replay.replay import Replay
from ...verify.start import inputs_of
from .limits import repeated

_LEAST_RUNS = 5
_MOST_RUNS = 100
_SECONDS = 1.0
"""How long it goes on, beyond the least runs."""
_LONG = 20.0
"""A step that takes longer is run three times."""
_MARKS = 1000


@dataclass(frozen=True)
class Timing:
    """Times of a step, in seconds."""

    whole: tuple[float, ...]
    """Each run without clocks inside."""
    calls: tuple[tuple[Span, ...], ...]
    """Each run with clocks: its calls, in seconds since the run began."""
    clock: float
    """What a clock adds to a call; it is taken off."""

    def by_node(self) -> dict[fx.Node, float]:
        """The median of the runs for each node, over all micro-batches."""
        found: dict[fx.Node, list[float]] = {}
        for run in self.calls:
            for node, seconds in self._seconds(run).items():
                found.setdefault(node, []).append(seconds)
        return {node: statistics.median(seconds) for node, seconds in found.items()}

    def typical(self) -> tuple[Span, ...]:
        """The calls of the run whose duration is the median."""
        runs = sorted(self.calls, key=lambda run: run[-1].end)
        return runs[(len(runs) - 1) // 2]

    def _seconds(self, run: Sequence[Span]) -> dict[fx.Node, float]:
        found: dict[fx.Node, float] = {}
        for node, start, end in run:
            found[node] = found.get(node, 0.0) + max(0.0, end - start - self.clock)
        return found


def timed(replay: Replay, executable: Lowered, call: Call) -> Timing:
    """Run ``executable``, the program of ``replay`` op by op, a few times. Each run starts anew."""
    given = inputs_of(replay.leaves, replay.captured.side_effects.extended(call).tensors)
    given += map(copied, replay.derived.tensors)
    on_gpu = "cuda" in replay.devices
    clocks: list[Clock] = []

    def clock() -> Clock:
        clocks.append(Clock(_event if on_gpu else time.perf_counter))
        return clocks[-1]

    clocked = variant(executable, "timed", clock)
    runs = _Runs(executable, given, on_gpu)
    whole: list[float] = []
    calls: list[tuple[Span, ...]] = []
    with _dry_run():
        for _ in range(2):  # kernels are loaded, memory is there
            runs.seconds(executable.function)
            runs.seconds(clocked.function)
            _spans(clocks, on_gpu)
        for _ in repeated(_LEAST_RUNS, _SECONDS, _LONG, _MOST_RUNS):
            whole.append(runs.seconds(executable.function))
            runs.seconds(clocked.function)
            calls.append(_spans(clocks, on_gpu))
    return Timing(tuple(whole), tuple(calls), 0.0 if on_gpu else _clock_seconds())


class _Runs:
    """Runs over copies, with the states restored at the start of each."""

    def __init__(self, executable: Lowered, given: Sequence[Any], on_gpu: bool) -> None:
        self._given = given
        self._values = list(map(copied, given))
        signature = executable.signature
        updates = signature.written
        inputs = enumerate(signature.inputs)
        self._written = [i for i, s in inputs if s.fqn in updates and s.meta is not None]
        self._on_gpu = on_gpu

    def seconds(self, function: Callable[[Sequence[Any]], object]) -> float:
        """Seconds of a run whose results are alive until its end, as a caller keeps them."""
        for i in self._written:
            self._values[i].copy_(self._given[i])
        if self._on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        kept = function(self._values)
        if self._on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        del kept
        return seconds


@contextmanager
def _dry_run() -> Iterator[None]:
    """Run the block without gradients, and without a change of the random state."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if cuda else []
    with torch.enable_grad(), below_autograd(), torch.random.fork_rng(devices=devices):
        yield


def _spans(clocks: Sequence[Clock], on_gpu: bool) -> tuple[Span, ...]:
    """The calls of a run, in the order in which they ran, in seconds since it began."""
    found = [span for clock in clocks for span in clock.spans()]
    if on_gpu and found:
        torch.cuda.synchronize()
        origin = found[0].start
        seconds = {id(at): origin.elapsed_time(at) / 1e3 for span in found for at in span[1:]}
        found = [Span(node, seconds[id(a)], seconds[id(b)]) for node, a, b in found]
    found.sort(key=lambda span: (span.start, span.end))
    start = found[0].start if found else 0.0
    return tuple(Span(node, a - start, b - start) for node, a, b in found)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _clock_seconds() -> float:
    taken: list[tuple[int, float]] = []
    take, now = taken.append, time.perf_counter
    for number in range(_MARKS):
        take((number, now()))
    return statistics.median(b - a for (_, a), (_, b) in pairwise(taken))
