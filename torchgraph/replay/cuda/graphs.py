"""The choice of programs to run as CUDA Graphs, and the state that those of a Graph share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ...errors import BackendWarning, CudaGraphRefused, NotSupported, SourceLine, warn
from ...ir.each import expanded
from ...ir.program import Program, Refusal
from ...ir.values import leaves
from ...lower import Halves, Lowered, Plan, Target, lower
from ...lower.halves.scan import scan
from ...options.options import Options
from ...pipeline.pipelined import Pipelined
from ..code import Code
from .cuda_graph import Calls, CaptureStage, CudaGraph
from .device import Cuda, GraphDevice

_OFF, _NO_GPU = "off", "nothing of the program is on a GPU"
NOT_LOOKED_AT = frozenset({_OFF, _NO_GPU})
"""Why there is no CUDA Graph where nobody has asked the program's ops."""


class CudaGraphs:
    """A stream and a memory pool for each GPU that the programs of one Graph are on."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._devices: dict[torch.device, GraphDevice] = {}

    def lower(self, program: Program, name: str, target: Target) -> Code:
        """Lower a program, for a CUDA Graph where it can be one and the options want it.

        Raises:
            CudaGraphRefused: it cannot be a CUDA Graph, and one is required.
        """
        options = target.options
        device = device_of(program)
        why = ""
        refusals: tuple[Refusal, ...] = ()
        if options.cuda_graph == "off":
            why = _OFF
        elif device is None:
            why = _NO_GPU
        else:
            refusals = scan(expanded(program), device)
        if options.cuda_graph == "require" and (device is None or refusals):
            raise CudaGraphRefused(_message(refusals, why), where=_line(refusals))
        if device is not None and not why and not refusals:
            try:
                lowering = lower(program, name, replace(target, halved_for=device))
            except NotSupported:
                raise  # of splitting, which is no matter of CUDA Graphs
            except Exception as error:  # op by op computes the same
                why = f"the step cannot be halved: {type(error).__name__}: {error}"
                if options.cuda_graph == "require":
                    raise CudaGraphRefused(_message((), why)) from error
                warn(f"No CUDA Graph, {why}", BackendWarning)
            else:
                graphed = self._graphed(lowering.runs, self.on(device), options)
                return Code(program, graphed, tuple(lowering.regions))
        lowering = lower(program, name, target)
        return Code(program, lowering.runs, tuple(lowering.regions), refusals, why)

    def on(self, device: torch.device) -> GraphDevice:
        """The one for all programs on that device."""
        if device not in self._devices:
            self._devices[device] = Cuda(device)
        return self._devices[device]

    def release(self) -> None:
        """Give the memory pools back, after all executables were closed."""
        for device in self._devices.values():
            device.release()

    def _graphed(self, executable: Lowered, device: GraphDevice, options: Options) -> Lowered:
        """``executable`` with a CUDA Graph in the place of each part that is halved."""
        if isinstance(executable, Plan):
            parts = (self._graphed(one, device, options) for one in executable.executables)
            first, following, update = parts
            return replace(executable, first=first, following=following, update=update)
        if not isinstance(executable, Halves):
            return executable
        required = options.cuda_graph == "require"
        return CudaGraph(executable, device, self.calls, required=required)


def status(code: Code) -> str:
    """``captured``, ``warm``, ... or why there is no CUDA Graph, in words."""
    if code.refusals:
        return "refused"
    stages = [(one.stage, one.failure) for one in cuda_graphs(code.executable)]
    failed = [failure for _, failure in stages if failure]
    if failed:
        return f"the capture failed: {failed[0]}"
    if not stages:
        return code.why_no_graph
    if all(stage is CaptureStage.CAPTURED for stage, _ in stages):
        count = sum(one.parts for one in cuda_graphs(code.executable))
        return f"captured, {count} for a step" if count > 1 else "captured"
    behind: str = next(stage.value for stage, _ in stages if stage is not CaptureStage.CAPTURED)
    return behind


def device_of(program: Program) -> torch.device | None:
    """The first GPU that a program computes on; None for one without a GPU."""
    for node in program.nodes:
        for value in leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.device.type == "cuda":
                return value.device
    return None


def cuda_graphs(executable: Lowered) -> list[CudaGraph]:
    """The CUDA Graphs that run a step."""
    parts = executable.executables if isinstance(executable, Plan) else (executable,)
    return [part for part in parts if isinstance(part, CudaGraph)]


def launched_singly(executable: Lowered) -> Lowered:
    """An executable with the same kernels, launched one by one instead of by a CUDA Graph."""
    if isinstance(executable, Plan):
        first, following, update = map(launched_singly, executable.executables)
        return replace(executable, first=first, following=following, update=update)
    return executable.halves if isinstance(executable, CudaGraph) else executable


def op_by_op(executable: Lowered, program: Program) -> Lowered:
    """An executable for the step without CUDA Graph replays.

    Of a pipeline, it runs all stages in this process.
    """
    if isinstance(executable, Pipelined):
        return executable.alone or executable
    return lower(program, "op by op").runs if cuda_graphs(executable) else executable


def _message(refusals: Iterable[Refusal], why: str) -> str:
    head = "A CUDA Graph is required, but the step cannot be replayed as one"
    lines = [f"  {one.reason}{_at(one)}" for one in refusals]
    return "\n".join([f"{head}:", *lines]) if lines else f"{head}: {why}."


def _at(refusal: Refusal) -> str:
    times = f" ({refusal.count} times)" if refusal.count > 1 else ""
    return times if refusal.line is None else f"{times}, at {refusal.line}"


def _line(refusals: Iterable[Refusal]) -> SourceLine | None:
    return next((one.line for one in refusals if one.line is not None), None)
