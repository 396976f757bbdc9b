"""The planned memory of a step, as a snapshot that pytorch.org/memory_viz opens.

The format is that of `torch.cuda.memory._snapshot`: segments, as they are at the end, and for each
device a trace of what is allocated and freed. It holds plain values alone, pickled in protocol 4,
which is the last that the viewer reads. Nothing has run: addresses are laid out here, and the time
is the position of the call in the step.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from ...artifact.files import replaced
from ...costs.owners import own_module
from ...ir.program import OutputKind, Phase, Role, provenance
from ...ir.values import tensors_of
from ...lower import Executable
from ...lower.lifetimes import Allocation, Lifetimes
from .addresses import ARENA, Block, Device, Frame
from .drawn import Drawn

_CATEGORIES = {
    Role.PARAMETER: "parameter",
    Role.BUFFER: "buffer",
    Role.SLOT: "optimizer_state",
    Role.SCALER: "optimizer_state",
    Role.INPUT: "input",
    Role.FREE: "input",
    Role.DERIVED: "cast",
}


class _Kept(NamedTuple):
    """A tensor that outlives the function that allocated it."""

    device: Device
    block: Block
    name: str
    """The accumulator whose first value it is; empty for what the caller gets."""


def save(path: str | os.PathLike[str], drawn: Drawn) -> None:
    """Write the snapshot of a step.

    Raises:
        CheckpointFileError: the path cannot be written.
    """
    with replaced(os.fspath(path)) as file:
        pickle.dump(snapshot(drawn), file, protocol=4)


def snapshot(drawn: Drawn) -> dict[str, Any]:
    """The memory of a step: the tensors before it, and its allocations.

    What kernels take for themselves is not in it, nor what has a size that depends on data. Of
    compiled code there is what it returns.
    """
    return _Step(drawn).run()


class _Step:
    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        values = [
            v for function in drawn.functions for n in function.program.nodes for v in tensors_of(n)
        ]
        gpus = [v.device.index or 0 for v in values if v.device.type == "cuda"]
        self._host = max(gpus, default=-1) + 1
        """The number of the CPU: after those of GPUs, as torch's profiler has it."""
        self._devices = [Device(number) for number in range(self._host + 1)]
        self._kept: list[_Kept] = []

    def run(self) -> dict[str, Any]:
        self._before()
        for function in self._drawn.functions:
            self._drop_casts(function)
            self._function(function)
        for device, block, name in self._kept:
            if name:
                device.free(block)
        for device in self._devices:
            device.know_category("unknown")
        return {
            "segments": [segment for device in self._devices for segment in device.segments()],
            "device_traces": [device.trace for device in self._devices],
        }

    def _before(self) -> None:
        """Allocate the tensors that exist before the step."""
        program = self._drawn.program
        for spec, node in program.inputs():
            if spec.meta is None or spec.alias_of is not None:
                continue
            runs = program.signature.micro_batches if spec.split else 1
            device = self._device(spec.meta.device)
            size = runs * sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(node))
            frame = Frame(filename=spec.role.value, line=0, name=str(spec.fqn))
            category = _CATEGORIES.get(spec.role, "unknown")
            device.begin(device.lasting.allocate(size, [frame]), category)
        known: set[int] = set()
        for function in self._drawn.functions:
            for node in function.program.nodes:
                if node.op == "get_attr":
                    self._constant(function, node, known)

    def _constant(self, function: Executable, node: fx.Node, known: set[int]) -> None:
        value = getattr(function.program.gm, str(node.target))
        if isinstance(value, torch.Tensor) and id(value) not in known:
            known.add(id(value))
            device = self._device(value.device)
            frame = Frame(filename="constant", line=0, name=str(node.target))
            device.begin(device.lasting.allocate(value.nbytes, [frame]), "constant")

    def _function(self, function: Executable) -> None:
        lifetimes = Lifetimes(function.program)
        names = dict(self._leaving(function, lifetimes))
        arena, host = function.memory.arena, self._devices[self._host]
        whole = Block(ARENA, arena.nbytes, ())
        if arena.offsets:
            host.note("segment_alloc", whole)
        born: dict[int, list[Allocation]] = {}
        for value in lifetimes.values:
            if value.nbytes:
                born.setdefault(value.born, []).append(value)
        dying: dict[int, list[tuple[Device, Block]]] = {}
        for position in range(len(lifetimes.nodes)):
            for value in born.get(position, ()):
                offsets = arena.offsets.get(value.node)
                at = None if offsets is None else ARENA + offsets[value.result]
                device, block = self._allocate(value, lifetimes, names.get(value), at)
                if value in names:
                    self._kept.append(_Kept(device, block, names[value]))
                else:
                    dying.setdefault(value.dies, []).append((device, block))
            for device, block in dying.pop(position, ()):
                device.free(block)
        if arena.offsets:
            host.note("segment_free", whole)

    def _allocate(
        self, value: Allocation, lifetimes: Lifetimes, kept_as: str | None, at: int | None
    ) -> tuple[Device, Block]:
        tensors = list(tensors_of(value.node))
        place = tensors[min(value.result, len(tensors) - 1)].device if tensors else None
        device = self._device(place)
        category = "gradient" if kept_as else "output"
        if kept_as is None:
            category = _category(value, lifetimes)
        given = (value.nbytes, _frames(value.node))
        block = device.passing.allocate(*given) if at is None else Block(at, *given)
        return device, device.begin(block, category)

    def _leaving(
        self, function: Executable, lifetimes: Lifetimes
    ) -> Iterator[tuple[Allocation, str]]:
        """The results of a function, with the names of the accumulators that they become."""
        for out, result in zip(function.outputs, function.program.results, strict=True):
            if isinstance(result, fx.Node):
                name = out.target if out.kind is OutputKind.GRADIENT else ""
                for value in lifetimes.memory(result):
                    yield value, name

    def _drop_casts(self, function: Executable) -> None:
        """Free casts of earlier functions that no function from this one on reads."""
        last = function is self._drawn.functions[-1]
        wanted = {spec.fqn for spec in function.program.signature.inputs}
        for kept in list(self._kept) if last else ():
            if kept.name and kept.name not in wanted:
                kept.device.free(kept.block)
                self._kept.remove(kept)

    def _device(self, place: torch.device | None) -> Device:
        if place is None or place.type != "cuda":
            return self._devices[self._host]
        return self._devices[place.index or 0]


def _category(value: Allocation, lifetimes: Lifetimes) -> str:
    """The category of a value; an activation is saved by the forward for the backward."""
    born = provenance(value.node).phase
    last = provenance(lifetimes.nodes[value.dies]).phase
    if born is last:
        return "temporary"
    return "activation" if born is Phase.FORWARD else "gradient"


def _frames(node: fx.Node) -> Sequence[Frame]:
    """Stack frames: the node, then the user's lines, the innermost first."""
    origin = provenance(node)
    module = own_module(node)
    where = f"{origin.phase.value}: {module}" if module else origin.phase.value
    found = [Frame(filename=where, line=0, name=node.name)]
    for line in origin.frames:
        found.append(Frame(filename=line.filename, line=line.lineno, name=line.function))
    return found
