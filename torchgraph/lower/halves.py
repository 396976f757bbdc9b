"""A program as two: the host's, which computes numbers, and the device's, which takes them.

The host's half runs in Python before the other: it reads learning rates, counts steps, and returns
the numbers that the device needs. These lie in one float64 vector on the device, of which an op
takes an element. So the device's half holds no number that moves and may be replayed; the optimizer
keeps its counters where eager has them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from .._torch import graph_module
from ..errors import SourceLine
from ..ops import update
from ..program import (
    InputSpec,
    OutputKind,
    OutputSpec,
    Program,
    Role,
    Signature,
    TensorMeta,
    provenance,
)
from ..values import evaluate, mode_of, neutral, with_values
from . import numbers, tensor_forms
from .executable import Lowered, lower
from .sides import UPDATES, counted, host_side, steps

aten = torch.ops.aten


@dataclass(frozen=True)
class Halves:
    """Two executables behind the interface of one."""

    host: Lowered
    """Returns its share of the outputs, then the numbers of the device's half."""
    device: Lowered
    """Takes the inputs of the whole, then the vector of numbers."""
    signature: Signature
    """Of the whole."""
    program: Program
    """The whole, not halved."""
    on: torch.device
    count: int
    """How many numbers the device's half takes."""
    written: tuple[int, ...]
    """The positions of the tensors that the host's half writes."""

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """As `Executable.outputs`: the host's, then the device's."""
        kept = tuple(o for o in self.host.outputs if o.kind is not OutputKind.NUMBER)
        return (*kept, *self.device.outputs)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The lowered programs of the halves."""
        return (self.host.program, self.device.program)

    @property
    def writes(self) -> bool:
        """As `Executable.writes`."""
        return self.host.writes or self.device.writes

    @property
    def random(self) -> bool:
        """As `Executable.random`."""
        return self.device.random

    @property
    def source(self) -> str:
        """Both functions."""
        return f"{self.host.source}\n{self.device.source}"

    def numbers(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], list[float]]:
        """Run the host's half: its outputs, and the numbers of the device's."""
        results = self.host.function(values)
        kept = len(results) - self.count
        return results[:kept], list(map(float, results[kept:]))

    def function(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """One step, nothing of it replayed."""

        def device_half(found: list[float]) -> tuple[Any, ...]:
            vector = torch.tensor(found, dtype=torch.float64, device=self.on)
            return self.device.function([*values, vector])

        return self.run(values, device_half)

    def run(
        self, values: Sequence[Any], device_half: Callable[[list[float]], Sequence[Any]]
    ) -> tuple[Any, ...]:
        """Both halves. The host's writes are undone when the other fails before it writes."""
        written = [values[i] for i in self.written]
        before = [tensor.clone() for tensor in written]
        kept, found = self.numbers(values)
        try:
            return (*kept, *device_half(found))
        except Exception as error:
            if not self.device.wrote(error):
                for tensor, old in zip(written, before, strict=True):
                    tensor.copy_(old)
            raise

    def wrote(self, error: BaseException) -> bool:
        """As `Executable.wrote`."""
        return self.device.wrote(error) or self.host.wrote(error)

    def node_at(self, error: BaseException) -> fx.Node | None:
        """As `Executable.node_at`."""
        return self.device.node_at(error) or self.host.node_at(error)

    def line_of(self, node: fx.Node | None) -> SourceLine | None:
        """As `Executable.line_of`."""
        return self.device.line_of(node)

    def close(self) -> None:
        """As `Executable.close`."""


def halve(
    program: Program,
    name: str,
    device: torch.device,
    lower_device: Callable[[Program, str], Lowered] = lower,
) -> Halves:
    """Halve a program in which `scan` found nothing, and lower both halves."""
    split = _Split(program, device)
    host, rest = split.run()
    return Halves(
        lower(host, f"{name}, numbers"),
        lower_device(rest, name),
        program.signature,
        program,
        device,
        split.count,
        _written(host.signature),
    )


def _written(signature: Signature) -> tuple[int, ...]:
    updates = {out.target for out in signature.outputs if out.kind is OutputKind.UPDATE}
    specs = enumerate(signature.inputs)
    return tuple(i for i, spec in specs if spec.fqn in updates and spec.meta is not None)


class _Split:
    def __init__(self, program: Program, device: torch.device) -> None:
        self._program = program = program.copy()
        self._device = device
        self._mode = mode_of(program)
        self._host_side = host_side(program, device)
        self._host = fx.Graph()
        self._rest = fx.Graph()
        self._on_host: dict[fx.Node, fx.Node] = {}
        self._on_device: dict[fx.Node, fx.Node] = {}
        self._numbers: list[Any] = []
        """What the vector holds: nodes of the host's graph, and constants."""
        self._elements: dict[fx.Node, fx.Node] = {}
        """Number or small tensor of the host -> the element of the vector."""
        self._casts: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}

    @property
    def count(self) -> int:
        """How long the vector is."""
        return len(self._numbers)

    def run(self) -> tuple[Program, Program]:
        for node in self._program.placeholders:
            self._on_host[node] = self._host.node_copy(node)
            self._on_device[node] = self._rest.node_copy(node)
        self._vector = self._rest.placeholder("numbers")
        with neutral(), self._mode:
            self._element = torch.empty((), dtype=torch.float64, device=self._device)
        for node in self._program.nodes:
            if node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function" and node in self._host_side:
                self._on_host[node] = self._host.node_copy(node, self._on_host.__getitem__)
            elif node.op == "call_function" and node not in self._on_host:
                self._on_device[node] = self._device_node(node)
        return self._finished()

    # --- the device's half ------------------------------------------------------------------------

    def _constant(self, node: fx.Node) -> None:
        """On both sides: a constant of the CPU that the device reads moves there."""
        self._on_host[node] = self._host.node_copy(node)
        held = operator.attrgetter(str(node.target))(self._program.gm)
        moves = node in self._host_side and isinstance(held, torch.Tensor)
        if not moves or held.device.type == self._device.type:
            self._on_device[node] = self._rest.node_copy(node)
        elif any(user not in self._host_side for user in node.users):
            name = f"{node.target}_moved".replace(".", "_")
            moved = held.to(self._device)
            self._program.gm.register_buffer(name, moved)
            self._on_device[node] = made = self._rest.get_attr(name)
            made.meta.update(node.meta, val=self._mode.from_tensor(moved))

    def _device_node(self, node: fx.Node) -> fx.Node:
        if node.target in UPDATES:
            return self._update(node)
        args = fx.map_arg(node.args, lambda used: self._as_tensor(used, node))
        kwargs = fx.map_arg(node.kwargs, lambda used: self._as_tensor(used, node))
        if tensor_forms.has_rule(node):
            made = tensor_forms.rewritten(self._emit, node, args, kwargs)
        elif numbers.moving(node):
            made = numbers.with_tensors(self._rest, node, args, kwargs)
        else:
            made = self._rest.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
            made.meta.update(node.meta)
        self._stamp(node)
        return made

    def _as_tensor(self, used: fx.Node, reader: fx.Node) -> fx.Node:
        """What stands on the device for a node: itself, or an element of the vector."""
        if used in self._on_device and (
            used not in self._host_side or used.op == "get_attr" or self._is_large(used)
        ):
            return self._on_device[used]
        element = self._elements.get(used)
        if element is None:
            element = self._elements[used] = self._number(self._read(used))
        found: fx.Node = self._cast(
            element, used.meta["val"].dtype if self._is_tensor(used) else torch.float64
        )
        return found

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        """A node of the device's graph in another dtype."""
        if not isinstance(value, fx.Node) or value.meta["val"].dtype is dtype:
            return value
        found = self._casts.get((value, dtype))
        if found is None:
            found = self._casts[value, dtype] = self._call(
                aten._to_copy.default, (value,), {"dtype": dtype}
            )
        return found

    def _is_large(self, node: fx.Node) -> bool:
        return self._is_tensor(node) and node.meta["val"].ndim > 0

    def _is_tensor(self, node: fx.Node) -> bool:
        return isinstance(node.meta.get("val"), torch.Tensor)

    def _read(self, node: fx.Node) -> fx.Node:
        """The node of the host's graph that holds a number."""
        found = self._on_host[node]
        if not self._is_tensor(node):
            return found
        read = self._host.call_function(aten._local_scalar_dense.default, (found,))
        read.meta.update(val=0.0, provenance=provenance(node))
        return read

    def _number(self, value: Any) -> fx.Node:
        """A new element of the vector."""
        made = self._rest.call_function(aten.select.int, (self._vector, 0, len(self._numbers)))
        made.meta["val"] = self._element
        self._numbers.append(value)
        return made

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: Any = None) -> fx.Node:
        made = self._rest.call_function(target, args, kwargs or {})
        with neutral():
            values = with_values((made.args, dict(made.kwargs)))
            made.meta["val"] = evaluate(self._mode, target, *values)
        return made

    def _emit(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self._call(target, args, kwargs)

    def _stamp(self, origin: fx.Node) -> None:
        """Say where the nodes made last come from."""
        for node in reversed(self._rest.nodes):
            if node.op != "call_function" or "provenance" in node.meta:
                break
            node.meta["provenance"] = provenance(origin)

    def _update(self, node: fx.Node) -> fx.Node:
        """The form of an update op that takes its numbers as tensors, and counts no steps."""
        rule = update.RULES[UPDATES[node.target]]  # type: ignore[index]  # an op
        args: list[Any] = list(fx.map_arg(node.args, lambda n: self._on_device.get(n, n)))
        counters = [step for step in steps(node) if step in self._host_side]
        if counters:
            elements = [self._number(self._read(step)) for step in counters]
            # One kernel that makes a tensor of each: the op writes what it takes as a step.
            fresh = self._call(aten._foreach_add.Scalar, (elements, 0))
            args[rule.lists.index("steps")] = [
                self._call(operator.getitem, (fresh, i)) for i in range(len(counters))
            ]
            for result, before in counted(node):
                self._count(result, before)
        kwargs: dict[str, Any] = {}
        for key, value in node.kwargs.items():
            if isinstance(value, fx.Node):
                kwargs[key] = self._as_tensor(value, node)
            elif key in rule.numbers:
                kwargs[key] = self._number(float(value))  # type: ignore[arg-type]  # a float
            elif key != "l1" or value:
                kwargs[key] = self._number(value) if key == "l1" else value
        form = update.functional(UPDATES[node.target], device=True)  # type: ignore[index]
        made = self._call(form, tuple(args), kwargs)
        self._stamp(node)
        return made

    def _count(self, result: fx.Node, before: fx.Node) -> None:
        counted = self._host.call_function(aten.add.Tensor, (self._on_host[before], 1))
        counted.meta.update(result.meta)
        self._on_host[result] = counted

    # --- putting them together --------------------------------------------------------------------

    def _finished(self) -> tuple[Program, Program]:
        with neutral(), self._mode:
            vector = torch.empty(self.count, dtype=torch.float64, device=self._device)
        self._vector.meta["val"] = vector
        signature = self._program.signature
        pairs = list(zip(signature.outputs, self._program.results, strict=True))
        host = [(out, value) for out, value in pairs if self._is_hosts(value)]
        rest = [(out, value) for out, value in pairs if not self._is_hosts(value)]
        results = [self._on_host[v] if isinstance(v, fx.Node) else v for _, v in host]
        self._host.output((*results, *self._numbers))
        self._rest.output(tuple(self._on_device[value] for _, value in rest))
        made = [OutputSpec(OutputKind.NUMBER, str(i)) for i in range(self.count)]
        own = replace(signature, outputs=(*(out for out, _ in host), *made))
        spec = InputSpec("numbers", Role.SCALAR, "numbers", TensorMeta.of(vector))
        others = tuple(out for out, _ in rest)
        theirs = replace(signature, inputs=(*signature.inputs, spec), outputs=others)
        return (
            Program(graph_module(self._program.gm, self._host), own),
            Program(graph_module(self._program.gm, self._rest), theirs),
        )

    def _is_hosts(self, value: Any) -> bool:
        """True for a result that the host's half returns."""
        if not isinstance(value, fx.Node) or value in self._host_side:
            return True
        return value not in self._on_device
