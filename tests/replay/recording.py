"""A device that records what is asked of it and replays on the CPU, with a GPU's rules.

A capture leaves everything as it was and its results meaningless; a replay works on the addresses
that were captured, whatever became of the tensors; nothing may ask for a value in a capture.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, ClassVar, final

import torch

from torchgraph._torch import TorchDispatchMode
from torchgraph.replay.device import CapturedGraph, Function, GraphDevice, Results
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

    def ordered(self) -> None:
        """A caller has one stream here."""

    def warm_up(self, function: Function, values: Sequence[Any]) -> Results:
        self.events.append("warm-up")
        return function(values)

    def capture(self, function: Function, values: Sequence[Any]) -> tuple[CapturedGraph, Results]:
        self.events.append("capture")
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("operation not permitted when stream is capturing")
        graph = _Graph(self, function, values)
        self.graphs.append(graph)
        return graph, graph.results

    def write(self, vector: torch.Tensor, values: Sequence[float]) -> None:
        self.events.append("numbers")
        vector.copy_(torch.tensor(values, dtype=torch.float64))

    def release(self) -> None:
        assert all(graph.is_reset for graph in self.graphs), "a graph still uses the pool"
        self.events.append("release")


@final
class _Graph:
    def __init__(self, device: Recording, function: Function, values: Sequence[Any]) -> None:
        self.is_reset = False
        self._device = device
        self._function = function
        self._values = list(values)
        self._addresses = self._places()
        memory = [v.untyped_storage() for v in values if isinstance(v, torch.Tensor)]
        before = [storage.clone() for storage in memory]
        random = torch.get_rng_state()
        with _Capturing():
            self.results = function(values)
        torch.set_rng_state(random)
        for storage, old in zip(memory, before, strict=True):
            storage.copy_(old)
        for result in self.results:
            result.fill_(torch.nan if result.is_floating_point() else -7)

    def replay(self) -> None:
        assert not self.is_reset, "a graph that was reset is replayed"
        assert self._addresses == self._places(), "replayed over memory that a state has left"
        self._device.events.append("replay")
        for kept, new in zip(self.results, self._function(self._values), strict=True):
            fill(kept, new)

    def reset(self) -> None:
        self.is_reset = True
        self.results, self._values = (), []
        self._device.events.append("reset")

    def _places(self) -> list[int]:
        return [value.data_ptr() for value in self._values if isinstance(value, torch.Tensor)]
