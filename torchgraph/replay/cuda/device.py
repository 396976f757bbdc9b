"""The GPU interface of a replay: streams, a memory pool, capture, replay, copies of numbers.

`Cuda` is the real one. Tests have another, which records the calls and checks their order.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, final

import torch

from ..._torch import cuda as _cuda
from ...collection import paused
from ...lower.pauses import Parts

_dry_run = threading.RLock()
"""torch allows one capture at a time in a process, and a warm-up frees every workspace."""

Results = tuple[object, ...]
Function = Callable[[Sequence[object]], Results]


class CapturedGraph(Protocol):
    """A captured function: `torch.cuda.CUDAGraph`."""

    def replay(self) -> None:
        """Run it again, on the current stream: the same kernels on the same addresses."""

    def reset(self) -> None:
        """Give its memory back to the pool."""


class Captured(NamedTuple):
    """A captured step: its parts, to be replayed in their order."""

    graphs: Sequence[CapturedGraph]
    seen: Sequence[torch.Tensor]
    """Values that the host reads after each part but the last; a replay fills them."""
    results: Results
    """Outputs that a replay of the last part fills."""


class GraphDevice(ABC):
    """One device of one Graph: a stream and a memory pool for all of its programs there."""

    device: torch.device

    @abstractmethod
    def open(self) -> None:
        """Make the stream and the pool, if they are not there."""

    @abstractmethod
    def ordered(self) -> None:
        """A step begins on the caller's stream: after the last one, on whatever stream that was."""

    @abstractmethod
    def warm_up(self, function: Function, values: Sequence[object]) -> Results:
        """Run ``function(values)`` for real, on the side stream, its memory from the pool."""

    @abstractmethod
    def capture(self, parts: Parts, values: Sequence[object]) -> Captured:
        """Capture ``parts(values)`` on the side stream, a graph for each part. Nothing runs.

        Raises:
            RuntimeError: an op cannot be captured. Nothing has changed.
        """

    @abstractmethod
    def write(self, vector: torch.Tensor, values: Sequence[float]) -> None:
        """Copy numbers into a float64 vector on the device, without waiting for it."""

    @abstractmethod
    def release(self) -> None:
        """Give the pool back, when all of its graphs are reset. A later use makes a new one."""


@final
class Cuda(GraphDevice):
    """A GPU. Replays are launched on the caller's stream, so results are ready where it expects.

    torch's default generator registers itself with each capture: a replay draws from the state that
    the generator has then, as many numbers as eager would.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._keeper: torch.cuda.CUDAGraph | None = None
        self._last: torch.cuda.Stream | None = None

    def open(self) -> None:
        """See `GraphDevice`."""
        if self._keeper is None:
            with torch.cuda.device(self.device), _dry_run:
                self._stream = self._stream or torch.cuda.Stream(self.device)
                self._pool = torch.cuda.graph_pool_handle()
                self._keeper = _cuda.keep_pool(self._pool, self._stream)

    def ordered(self) -> None:
        """See `GraphDevice`."""
        current = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != current:
            current.wait_stream(self._last)
        self._last = current

    def warm_up(self, function: Function, values: Sequence[object]) -> Results:
        """See `GraphDevice`."""
        with self._dry_run(), _cuda.allocating_from(self._pool, self.device):
            return function(values)

    def capture(self, parts: Parts, values: Sequence[object]) -> Captured:
        """See `GraphDevice`.

        Other threads may go on allocating and copying: what they do is none of this capture.
        """
        graphs: list[torch.cuda.CUDAGraph] = []
        seen: list[torch.Tensor] = []
        step = parts(values)
        with self._dry_run() as stream, paused():  # a collection could free memory of another graph
            try:
                while True:
                    graphs.append(torch.cuda.CUDAGraph())
                    with _cuda.capturing(graphs[-1], self._pool, stream):
                        part = advance(step)
                    if isinstance(part, tuple):
                        return Captured(graphs, seen, part)
                    seen.append(part)
            except BaseException:
                if graphs and not _cuda.came_to_end(graphs[-1], self._pool, stream):
                    self._renew()
                for graph in graphs:
                    graph.reset()
                raise

    def write(self, vector: torch.Tensor, values: Sequence[float]) -> None:
        """See `GraphDevice`.

        The pinned memory is torch's, which does not hand it out again before the copy is done.
        """
        pinned = torch.tensor(values, dtype=torch.float64, pin_memory=True)
        vector.copy_(pinned, non_blocking=True)

    def release(self) -> None:
        """See `GraphDevice`."""
        if self._keeper is not None:
            torch.cuda.synchronize(self.device)
            self._keeper.reset()
            self._keeper = self._pool = None
            torch.cuda.empty_cache()

    def _renew(self) -> None:
        """Another pool for what is captured from now on; to open it, something is captured."""
        assert self._keeper is not None
        self._keeper.reset()  # the graphs in the old pool keep it
        self._keeper = None
        with suppress(RuntimeError):  # a GPU beyond help: what ended the capture is raised
            self.open()

    @contextmanager
    def _dry_run(self) -> Iterator[torch.cuda.Stream]:
        """On the side stream, after what the caller's has to do, and before what it gets next."""
        with torch.cuda.device(self.device), _dry_run, _cuda.own_workspaces():
            assert self._stream is not None
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                yield self._stream
            current.wait_stream(self._stream)


def advance(step: Generator[torch.Tensor, None, Results]) -> torch.Tensor | Results:
    """The values that the next part of a step yields, or that the last one returns."""
    try:
        return next(step)
    except StopIteration as end:
        results: Results = end.value
        return results
