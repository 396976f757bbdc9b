"""Whether a program runs as a CUDA Graph, and what all of those of one Graph share."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from ...errors import BackendWarning, CudaGraphRefused, SourceLine, warn
from ...ir.each import expanded
from ...ir.program import Program, Refusal
from ...ir.values import leaves
from ...lower import Around, Lowered, LowerPart, Part, Plan, halve, lower, plain
from ...lower.halves.scan import scan
from ...options.options import Options
from .cuda_graph import Calls, CaptureStage, CudaGraph
from .device import Cuda, GraphDevice


class CudaGraphs:
    """Of one Graph: a stream and a memory pool for each GPU that its programs are on."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._devices: dict[torch.device, GraphDevice] = {}

    def graphing(self, options: Options) -> Graphing:
        """Of one program."""
        return Graphing(self, options)

    def on(self, device: torch.device) -> GraphDevice:
        """The one for all programs on that device."""
        if device not in self._devices:
            self._devices[device] = Cuda(device)
        return self._devices[device]

    def release(self) -> None:
        """Give the memory pools back, after all executables were closed."""
        for device in self._devices.values():
            device.release()


class Graphing:
    """The decision for one program, and the reasons."""

    def __init__(self, graphs: CudaGraphs, options: Options) -> None:
        self._graphs = graphs
        self._options = options
        self.refusals: tuple[Refusal, ...] = ()
        """Why not; of the program that was lowered last."""
        self._why = ""

    def around(self, program: Program) -> Around:
        """What `lower` is to put around the parts of ``program``.

        Raises:
            CudaGraphRefused: it cannot be a CUDA Graph, and one is required.
        """
        options, self.refusals, self._why = self._options, (), ""
        device = device_of(program)
        if options.cuda_graph == "off":
            self._why = "off"
        elif device is None:
            self._why = "nothing of the program is on a GPU"
        else:
            self.refusals = scan(expanded(program), device)
        if options.cuda_graph == "require" and (device is None or self.refusals):
            raise CudaGraphRefused(_message(self.refusals, self._why), where=_line(self.refusals))
        if self._why or self.refusals or device is None:
            return plain
        return functools.partial(self._around, self._graphs.on(device))

    def began(self) -> None:
        """A call begins."""
        self._graphs.calls.number += 1

    def status(self, executable: Lowered) -> str:
        """``captured``, ``warm``, ... or why there is no CUDA Graph, in words."""
        if self.refusals:
            return "refused"
        stages = [(one.stage, one.failure) for one in cuda_graphs(executable)]
        failed = [failure for _, failure in stages if failure]
        if failed:
            return f"the capture failed: {failed[0]}"
        if not stages:
            return self._why
        if all(stage is CaptureStage.CAPTURED for stage, _ in stages):
            count = sum(one.parts for one in cuda_graphs(executable))
            return f"captured, {count} for a step" if count > 1 else "captured"
        behind: str = next(stage.value for stage, _ in stages if stage is not CaptureStage.CAPTURED)
        return behind

    def _around(self, device: GraphDevice, part: LowerPart) -> Part:
        def lower_part(program: Program, name: str) -> Lowered:
            try:
                halves = halve(program, name, device.device, part)
            except Exception as error:  # op by op computes the same
                self._why = f"the step cannot be halved: {type(error).__name__}: {error}"
                if self._options.cuda_graph == "require":
                    raise CudaGraphRefused(_message((), self._why)) from error
                warn(f"No CUDA Graph, {self._why}", BackendWarning)
                return part(program, name)
            whole = program.signature.micro_batches == 1
            return CudaGraph(
                halves,
                device,
                self._graphs.calls,
                lends=whole and self._options.outputs_buffer_size > 0,
                required=self._options.cuda_graph == "require",
            )

        return lower_part


def device_of(program: Program) -> torch.device | None:
    """The first GPU that a program computes on; None for one without a GPU."""
    for node in program.nodes:
        for value in leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.device.type == "cuda":
                return value.device
    return None


def cuda_graphs(executable: Lowered) -> list[CudaGraph]:
    """Those that run a step."""
    parts = executable.executables if isinstance(executable, Plan) else (executable,)
    return [part for part in parts if isinstance(part, CudaGraph)]


def op_by_op(executable: Lowered, program: Program) -> Lowered:
    """What computes a step without a replay: another executable where this one replays."""
    return lower(program, "op by op") if cuda_graphs(executable) else executable


def _message(refusals: Iterable[Refusal], why: str) -> str:
    head = "A CUDA Graph is required, but the step cannot be replayed as one"
    lines = [f"  {one.reason}{_at(one)}" for one in refusals]
    return "\n".join([f"{head}:", *lines]) if lines else f"{head}: {why}."


def _at(refusal: Refusal) -> str:
    times = f" ({refusal.count} times)" if refusal.count > 1 else ""
    return times if refusal.line is None else f"{times}, at {refusal.line}"


def _line(refusals: Iterable[Refusal]) -> SourceLine | None:
    return next((one.line for one in refusals if one.line is not None), None)
