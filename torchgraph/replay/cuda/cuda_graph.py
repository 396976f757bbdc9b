"""A step's device half as a CUDA Graph: cold → warm → captured → closed.

The first call runs op by op, which also warms up: kernels are loaded, algorithms chosen, memory
lies in the pool. The second call captures, which runs nothing, and replays. Each call is one real
step. Where the host has to read a value before the step may go on, it is several CUDA Graphs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, final

import torch

from ...collection import afresh
from ...counters import counters
from ...errors import BackendWarning, CudaGraphRefused, warn
from ...ir.copies import blank, copy_of, fill
from ...ir.program import OutputKind, OutputSpec, Program, Role, Signature
from ...library import ValueMoved
from ...lower import Composite, Halves
from .device import Captured, GraphDevice

_COPIED_OUT = (OutputKind.USER, OutputKind.NORM)
"""Outputs that a caller keeps. A gradient is not copied: the next part of the step reads it."""


class CaptureStage(enum.Enum):
    """The stages in the life of a CUDA Graph."""

    COLD = "cold"
    WARM = "warm"
    CAPTURED = "captured"
    FAILED = "failed"
    CLOSED = "closed"


class Calls:
    """Counts the calls of a Graph: a part of a step runs more than once in one."""

    def __init__(self) -> None:
        self.number = 0


@final
class CudaGraph(Composite):
    """An executable that replays a CUDA Graph. Parameters, buffers and slots are used in place.

    Args:
        required: a failed capture raises; else it warns, and the step goes on op by op.
    """

    def __init__(
        self, halves: Halves, device: GraphDevice, calls: Calls, *, required: bool
    ) -> None:
        self.stage = CaptureStage.COLD
        self.failure = ""
        """Why the capture failed."""
        self.capture_seconds = 0.0
        self.first_replay_seconds = 0.0
        """On the host; the device may still be computing."""
        self._halves = halves
        self._device = device
        self._calls = calls
        self._lends = False
        self._required = required
        self._warmed_in = 0
        self._wrote = False
        """True in a replay, once no predicate can end it any more: its last part may write."""
        self._captured: Captured | None = None
        self._vector: torch.Tensor | None = None
        self._numbers: list[float] = []
        """The numbers in the vector."""
        specs = halves.signature.inputs
        placeholders = halves.device.program.placeholders[:-1]
        read = [i for i, node in enumerate(placeholders) if node.users]
        tensors = [i for i in read if specs[i].meta is not None]
        self._copied = [i for i in tensors if specs[i].role is Role.INPUT]
        self._static = [i for i in tensors if specs[i].role is not Role.INPUT]
        self._buffers: dict[int, torch.Tensor] = {}
        self._addresses: list[int] = []
        updates = halves.signature.written
        self._written = [i for i in self._static if specs[i].fqn in updates]
        self._copied_back = [i for i in self._copied if specs[i].fqn in updates]

    # --- as an executable -------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """The signature of the step."""
        return self._halves.signature

    @property
    def program(self) -> Program:
        """The program whose halves are lowered."""
        return self._halves.program

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs of the function: the host's, then the device's."""
        return self._halves.outputs

    @property
    def executables(self) -> tuple[Halves]:
        """The executables that are replayed: both halves of the step."""
        return (self._halves,)

    @property
    def copied(self) -> tuple[int, ...]:
        """Copied inputs of the halves; none once a CUDA Graph replays them: no op raises then."""
        return () if self.stage is CaptureStage.CAPTURED else self._halves.copied

    def wrote(self, error: BaseException) -> bool:
        """True when the run that failed had begun to write states."""
        return self._wrote or super().wrote(error)

    def moved(self, error: BaseException) -> bool:
        """True when the run failed before its last predicate had held, so before it wrote."""
        return isinstance(error, ValueMoved) or super().moved(error)

    @property
    def parts(self) -> int:
        """The number of CUDA Graphs, once captured."""
        return len(self._captured.graphs) if self._captured else 0

    @property
    def halves(self) -> Halves:
        """The replayed halves, to be run op by op."""
        return self._halves

    def close(self) -> None:
        """Give the memory of the CUDA Graph back to the pool. It is not run any more."""
        self._forget()
        self._buffers, self._vector = {}, None
        self.stage = CaptureStage.CLOSED

    # --- running ----------------------------------------------------------------------------------

    def function(self, values: Sequence[Any]) -> tuple[object, ...]:
        """One step."""
        assert self.stage is not CaptureStage.CLOSED, "a closed CUDA Graph is not run"
        self._wrote = False
        if self.stage is CaptureStage.FAILED:
            return self._halves.function(values)
        if self.stage is CaptureStage.COLD and not self._open():
            return self._halves.function(values)
        self._device.ordered()
        if self.stage is CaptureStage.COLD or self._warmed_in == self._calls.number:
            return self._warm_up(values)
        if self.stage is CaptureStage.CAPTURED and self._addresses != self._addresses_of(values):
            self._forget()
            self.stage = CaptureStage.WARM
        if self.stage is CaptureStage.CAPTURED:
            return self._replay(values)
        if not self._capture(values):
            return self._halves.function(values)
        start = perf_counter()
        results = self._replay(values)
        self.first_replay_seconds = perf_counter() - start
        return results

    def _open(self) -> bool:
        """True when the device has a stream and a pool."""
        try:
            self._device.open()
        except Exception as error:  # op by op computes the same
            self._failed(error)
            return False
        return True

    def _warm_up(self, values: Sequence[Any]) -> tuple[object, ...]:
        def device_half(numbers: list[float]) -> list[object]:
            return self._handed_out(self._run_aside([*values, self._write(numbers)]))

        results = self._halves.run(values, device_half)
        if self.stage is CaptureStage.COLD:
            self.stage, self._warmed_in = CaptureStage.WARM, self._calls.number
        return results

    def _run_aside(self, given: Sequence[object]) -> tuple[object, ...]:
        """The device's half as a warm-up; plainly where the device cannot even begin."""
        function, began = self._halves.device.function, False

        def run(values: Sequence[object]) -> tuple[object, ...]:
            nonlocal began
            began = True
            return function(values)

        try:
            return self._device.warm_up(run, given)
        except Exception as error:  # of the device, not of the step
            if began:
                raise
            self._failed(error)
            return function(given)

    def _capture(self, values: Sequence[Any]) -> bool:
        """Capture; False when that failed, and nothing has changed.

        Raises:
            CudaGraphRefused: it failed, and a CUDA Graph is required.
        """
        held = list(values)
        for i in self._copied:
            if i not in self._buffers:
                self._buffers[i] = blank(values[i])
            fill(self._buffers[i], values[i])
            held[i] = self._buffers[i]
        start = perf_counter()
        try:
            parts = self._halves.device.pauses.parts
            self._captured = self._device.capture(parts, [*held, self._vector])
        except Exception as error:  # a capture runs nothing: op by op computes the same
            self._failed(error)
            return False
        counters.graph_captures += 1
        self.capture_seconds = perf_counter() - start
        self._addresses = self._addresses_of(values)
        self.stage = CaptureStage.CAPTURED
        return True

    def _failed(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        line = self.line_of(self._halves.device.node_at(error))
        if self._required:
            message = f"The step cannot be captured as a CUDA Graph: {reason}"
            raise CudaGraphRefused(message, where=line) from error
        self.stage, self.failure, self._buffers = CaptureStage.FAILED, reason, {}
        at = "" if line is None else f" at {line}"
        warn(f"No CUDA Graph, the capture failed{at}: {reason}", BackendWarning)

    def _replay(self, values: Sequence[Any]) -> tuple[object, ...]:
        assert self._captured is not None
        results = self._captured.results
        # Only a predicate ends a replay before it writes; else the counters need no copies.
        undone = self._halves.undone(values, unless=self.wrote) if self.expects else nullcontext()
        self._wrote = not self.expects
        with undone:
            found = self._halves.numbers(values)
            self._write(found.numbers)
            for i, buffer in self._buffers.items():
                fill(buffer, values[i])
            self._replay_parts(self._captured)
            for i in self._copied_back:
                fill(values[i], self._buffers[i])
            # A replay does not tell autograd what it writes.
            written = [values[i] for i in self._written if not values[i].is_inference()]
            torch.autograd.graph.increment_version(written)
            self._halves.count_steps(values, found, results)
            returned = (*found.kept, *self._handed_out(results))
        self._wrote = False
        return returned

    def _replay_parts(self, captured: Captured) -> None:
        for number, flags in enumerate(captured.seen):
            captured.graphs[number].replay()
            moved = self._halves.device.pauses.moved(number, flags)
            if moved is not None:
                raise afresh(moved)
        self._wrote = True
        captured.graphs[-1].replay()
        counters.graph_replays += 1

    # --- pieces -----------------------------------------------------------------------------------

    def _write(self, numbers: list[float]) -> torch.Tensor:
        """The vector, with these numbers in it."""
        if self._vector is None:
            self._vector = torch.zeros(
                len(numbers), dtype=torch.float64, device=self._device.device
            )
            self._numbers = [0.0] * len(numbers)
        if numbers != self._numbers:
            self._device.write(self._vector, numbers)
            self._numbers = numbers
        return self._vector

    def lend(self, mode: bool) -> None:
        """Hand results out as they are, to be copied before the next call, or copies of them."""
        self._lends = mode

    def _handed_out(self, results: Sequence[Any]) -> list[object]:
        """Copies of what the next replay would overwrite."""
        if self._lends:
            return list(results)
        outputs = self._halves.device.outputs
        return [
            copy_of(value) if out.kind in _COPIED_OUT else value
            for out, value in zip(outputs, results, strict=True)
        ]

    def _addresses_of(self, values: Sequence[Any]) -> list[int]:
        return [values[i].data_ptr() for i in self._static]

    def _forget(self) -> None:
        if self._captured is not None:
            graphs, self._captured = self._captured.graphs, None
            for graph in graphs:
                graph.reset()
