"""A device that records what is asked of it and replays op by op, on the CPU with a GPU's rules.

A capture leaves everything as it was and its results meaningless; a replay works on the addresses
that were captured, whatever became of the tensors; nothing may ask for a value in a capture.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, ClassVar, final

import torch

from torchgraph._torch import TorchDispatchMode
from torchgraph.lower.pauses import Parts
from torchgraph.replay.cuda.device import Captured, Function, GraphDevice, Results, advance
from torchgraph.replay.outputs import fill

aten = torch.ops.aten
_FORBIDDEN = (aten._local_scalar_dense.default, aten.nonzero.default)


class _Capturing(TorchDispatchMode):
    """Refuses what a stream that captures does not permit."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FORBIDDEN:
            raise RuntimeError(f"{func} is not permitted when a stream is capturing")
        return func(*args, **(kwargs or {}))


@final
class Recording(GraphDevice):
    """The events, in order: what the state machine asked for."""

    made: ClassVar[list[Recording]] = []

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events: MutableSequence[str] = []
        self.graphs: list[_Graph] = []
        self.fail_next = False
        self.made.append(self)

    def open(self) -> None:
        """There is nothing to open here."""

    def ordered(self) -> None:
        """A caller has one stream here."""

    def warm_up(self, function: Function, values: Sequence[Any]) -> Results:
        self.events.append("warm-up")
        return function(values)

    def capture(self, parts: Parts, values: Sequence[Any]) -> Captured:
        self.events.append("capture")
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("operation not permitted when stream is capturing")
        step = _Step(self, parts, values)
        self.graphs += step.graphs
        return Captured(step.graphs, step.seen, step.results)

    def write(self, vector: torch.Tensor, values: Sequence[float]) -> None:
        self.events.append("numbers")
        vector.copy_(torch.tensor(values, dtype=torch.float64))

    def release(self) -> None:
        assert all(graph.is_reset for graph in self.graphs), "a graph still uses the pool"
        self.events.append("release")


@final
class _Step:
    """What was captured: all parts run again, one at a time, over the same memory."""

    def __init__(self, device: Recording, parts: Parts, values: Sequence[Any]) -> None:
        self._device = device
        self._parts = parts
        self._values = list(values)
        self._addresses = self._places()
        self._running: Any = None
        self._reached = 0
        memory = [v.untyped_storage() for v in values if isinstance(v, torch.Tensor)]
        before = [storage.clone() for storage in memory]
        generator = _generator(device.device)
        random = generator.get_state()
        with _Capturing():
            running = parts(values)
            self.seen: list[torch.Tensor] = []
            while isinstance(part := advance(running), torch.Tensor):
                self.seen.append(part)
            self.results: Results = part
        generator.set_state(random)
        for storage, old in zip(memory, before, strict=True):
            storage.copy_(old)
        for result in (*self.seen, *self.results):
            result.fill_(torch.nan if result.is_floating_point() else -7)
        self.graphs = [_Graph(self, number) for number in range(len(self.seen) + 1)]

    def replay(self, number: int) -> None:
        assert self._addresses == self._places(), "replayed over memory that a state has left"
        self._device.events.append("replay")
        if number == 0:
            self._running = self._parts(self._values)
        else:
            assert number == self._reached + 1, "a part is replayed without those before it"
        self._reached = number
        found = advance(self._running)
        if isinstance(found, torch.Tensor):
            fill(self.seen[number], found)
        else:
            for kept, new in zip(self.results, found, strict=True):
                fill(kept, new)

    def reset(self) -> None:
        self.seen, self.results, self._values, self._running = [], (), [], None
        self._device.events.append("reset")

    def _places(self) -> list[int]:
        return [value.data_ptr() for value in self._values if isinstance(value, torch.Tensor)]


@final
class _Graph:
    def __init__(self, step: _Step, number: int) -> None:
        self.is_reset = False
        self._step = step
        self._number = number

    @property
    def results(self) -> Results:
        return self._step.results

    def replay(self) -> None:
        assert not self.is_reset, "a graph that was reset is replayed"
        self._step.replay(self._number)

    def reset(self) -> None:
        self.is_reset = True
        self._step.reset()


def _generator(device: torch.device) -> torch.Generator:
    """torch's default one of a device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator
