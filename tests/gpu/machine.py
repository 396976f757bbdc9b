"""A GPU as the jobs use it, and a stand-in on the CPU that walks the same lines without one.

`Dry` proves no number. It replays on the CPU as the tests do (`tests.replay.recording`), so that no
error of typing costs a minute of a GPU.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final
from unittest import mock

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import contenders
from benchmarks.timing import Clock, EventClock
from tests.replay.recording import Recording
from torchgraph.replay.cuda import graphs

Span = tuple[float, float]
MIB = 1 << 20


@dataclass(frozen=True)
class Activity:
    """Kernels of a device while some steps ran."""

    kernels: float
    """Kernels and copies in a step."""
    busy: float
    """The share of the time from the first to the last of them in which one of them ran."""
    gap: float
    """Seconds between one and the next, their median."""


class Machine(ABC):
    """Where the jobs run."""

    device: torch.device
    dry: bool

    @abstractmethod
    def clock(self) -> Clock:
        """Seconds of calls, without what the host does after the last one."""

    @abstractmethod
    def wait(self) -> None:
        """Until the device has done what it was asked."""

    @abstractmethod
    def spans(self, step: Callable[[], Any], steps: int) -> list[Span]:
        """When each kernel or copy of some steps began and ended, in seconds, in order."""

    @abstractmethod
    def pool_bytes(self) -> int:
        """Bytes that the memory pools of CUDA Graphs hold in this process."""

    @abstractmethod
    def peak_bytes(self, step: Callable[[], Any]) -> int:
        """The most that is allocated in a step, above what was allocated before it."""

    @abstractmethod
    def random_state(self) -> Tensor:
        """Of the device's generator."""

    @abstractmethod
    def set_random_state(self, state: Tensor) -> None:
        """Let the generator go on from there."""

    def activity(self, step: Callable[[], Any], steps: int = 10) -> Activity | None:
        """Kernels, busy time and gaps of a step that has been warmed up; None if none was seen.

        Under a profiler, which slows launches: of a step that waits for them it says too little.
        """
        spans = self.spans(step, steps)
        return activity(spans, steps) if spans else None  # a profiler may not read each GPU


def activity(spans: Sequence[Span], steps: int) -> Activity:
    """Of kernels in the order of their beginnings; those of several streams count once."""
    first, last = spans[0]
    covered, gaps = last - first, []
    for start, stop in spans[1:]:
        gaps.append(max(0.0, start - last))
        covered += max(0.0, stop - max(start, last))
        last = max(last, stop)
    whole = max(last - first, 1e-12)
    gap = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    return Activity(len(spans) / steps, covered / whole, gap)


@final
class Gpu(Machine):
    """The first GPU."""

    dry = False

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())

    def clock(self) -> Clock:
        """See `Machine`."""
        return EventClock(self.device)

    def wait(self) -> None:
        """See `Machine`."""
        torch.cuda.synchronize()

    def spans(self, step: Callable[[], Any], steps: int) -> list[Span]:
        """See `Machine`."""
        self.wait()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
            for _ in range(steps):
                step()
            self.wait()
        return sorted(
            (event.time_range.start / 1e6, event.time_range.end / 1e6)
            for event in found.events() or []
            if event.device_type.name == "CUDA"
            and not event.is_user_annotation  # spans kernels and the gaps between them
        )

    def pool_bytes(self) -> int:
        """See `Machine`."""
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) != (0, 0)
        )

    def peak_bytes(self, step: Callable[[], Any]) -> int:
        """See `Machine`."""
        self.wait()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        self.wait()
        return torch.cuda.max_memory_allocated() - before

    def random_state(self) -> Tensor:
        """See `Machine`."""
        return torch.cuda.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        """See `Machine`."""
        torch.cuda.set_rng_state(state)


@final
class Dry(Machine):
    """The CPU in a GPU's place."""

    dry = True
    device = torch.device("cpu")

    def clock(self) -> Clock:
        """See `Machine`."""
        return Clock(self.device)

    def wait(self) -> None:
        """See `Machine`."""

    def spans(self, step: Callable[[], Any], steps: int) -> list[Span]:
        """Two for each step, of nothing."""
        found = []
        for _ in range(steps):
            step()
            now = time.perf_counter()
            found += [(now, now + 1e-6), (now + 2e-6, now + 3e-6)]
        return found

    def pool_bytes(self) -> int:
        """There is none."""
        return 0

    def peak_bytes(self, step: Callable[[], Any]) -> int:
        """Nobody counts."""
        step()
        return MIB

    def random_state(self) -> Tensor:
        """See `Machine`."""
        return torch.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        """See `Machine`."""
        torch.set_rng_state(state)


@contextmanager
def machine(*, dry: bool) -> Iterator[Machine]:
    """The one of this process; dry, programs on the CPU count as being on a GPU in the block."""
    if not dry:
        yield Gpu()
        return
    torch.set_num_threads(1)
    with (
        mock.patch.object(graphs, "Cuda", Recording),
        mock.patch.object(graphs, "device_of", return_value=Dry.device),
        mock.patch.object(contenders, "_capture", _captured_dry),
        mock.patch.object(torch, "compile", _compiled_dry),
    ):
        yield Dry()


@contextmanager
def op_by_op() -> Iterator[None]:
    """In the block what would be a CUDA Graph runs op by op: the same program, the same kernels."""
    with mock.patch.object(graphs, "Cuda", Recording):
        try:
            yield
        finally:
            Recording.made.clear()  # what they hold lies on the GPU


class _Eagerly:
    """In the place of a captured CUDA Graph: a replay runs the step."""

    def __init__(self, step: Callable[[], Tensor], loss: Tensor) -> None:
        self._step = step
        self._loss = loss

    def replay(self) -> None:
        self._loss.copy_(self._step())


def _captured_dry(eager: Callable[[], Tensor], optimizer: Any) -> tuple[Any, Tensor]:
    loss = eager().clone()
    return _Eagerly(eager, loss), loss


_compile = torch.compile


def _compiled_dry(function: Any, *, mode: str | None = None, **options: Any) -> Any:
    """Without a compiler: what is traced runs op by op."""
    return _compile(function, backend="eager", **options)
