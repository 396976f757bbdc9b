"""How time is taken: contenders alternate round by round, medians over the rounds."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Spread:
    """A sample, in seconds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the sample."""
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The ends of the middle half; twice the same for a sample of one."""
        if len(self.rounds) < 2:
            return self.rounds[0], self.rounds[0]
        first, _, third = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return first, third

    def as_json(self) -> dict[str, Any]:
        """Median and spread, without the sample."""
        return {
            "median": self.median,
            "min": min(self.rounds),
            "max": max(self.rounds),
            "quartiles": list(self.quartiles),
        }


class Clock:
    """Times calls on a device; on CUDA it waits for the device before and after.

    ``now`` gives seconds; ``time.thread_time`` leaves out what other processes take from a single
    thread.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._now = now

    def seconds(self, call: Callable[[], Any], times: int = 1) -> float:
        """What ``times`` calls take together."""
        self._wait()
        start = self._now()
        for _ in range(times):
            call()
        self._wait()
        return self._now() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class EventClock(Clock):
    """Times calls by events of a GPU: from the beginning of the first to the end of the last.

    What the host does after its last launch is not counted; gaps between kernels are.
    """

    def seconds(self, call: Callable[[], Any], times: int = 1) -> float:
        """What ``times`` calls take together."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._wait()
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def warm_up(
    clock: Clock, call: Callable[[], Any], *, most: int = 50, longest: float = 5.0
) -> float:
    """Call until three calls in a row take the same time within 10 %; seconds of one call.

    Gives up after ``most`` calls or ``longest`` seconds: on a loaded machine nothing is stable.
    """
    taken: list[float] = []
    while len(taken) < most and sum(taken) < longest:
        taken.append(clock.seconds(call))
        last = taken[-3:]
        if len(taken) >= 5 and max(last) <= 1.1 * min(last):
            break
    return statistics.median(taken[-3:])


def alternate(
    clock: Clock,
    calls: Sequence[Callable[[], Any]],
    *,
    rounds: int,
    least_seconds: float,
    after_round: Callable[[int], None] = lambda number: None,
) -> list[Spread]:
    """Seconds per call of each, one figure per round.

    In each round every contender runs for at least ``least_seconds``; who begins changes from round
    to round, so that none always runs on a rested machine.
    """
    sizes = [
        max(1, math.ceil(least_seconds / max(warm_up(clock, call), 1e-7) / 4)) for call in calls
    ]
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for offset in range(len(calls)):
            index = (number + offset) % len(calls)
            gc.collect()
            found[index].append(_one_round(clock, calls[index], sizes[index], least_seconds))
        after_round(number)
    return [Spread(tuple(sample)) for sample in found]


def _one_round(clock: Clock, call: Callable[[], Any], size: int, least_seconds: float) -> float:
    seconds, count = 0.0, 0
    while seconds < least_seconds:
        seconds += clock.seconds(call, size)
        count += size
    return seconds / count


def against_first(names: Sequence[str], spreads: Sequence[Spread]) -> list[dict[str, Any]]:
    """Each contender's seconds and its speed against the first one's, as JSON."""
    first = spreads[0].median
    return [
        {
            "name": name,
            "seconds": spread.as_json(),
            "speed_against_first": first / spread.median,
        }
        for name, spread in zip(names, spreads, strict=True)
    ]
