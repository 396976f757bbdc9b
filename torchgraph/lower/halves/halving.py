"""Cuts a program into the host's half and the device's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ... import library
from ..._torch import graph_module
from ...ir.nodes import item, operands
from ...ir.program import (
    STANDS_FOR,
    InputSpec,
    OutputKind,
    OutputSpec,
    Program,
    Role,
    TensorMeta,
    identity,
    made_by,
    provenance,
)
from ...ir.values import mode_of, neutral, valued
from ...passes.fusions.model_update import op as update
from ..numbers import list_forms, numbers, tensor_forms
from ..numbers.sides import UPDATES, counted, host_side, steps

aten = torch.ops.aten
Operand = TypeVar("Operand", bound=Argument)


class Halving:
    """Cuts one program, in which `scan` found nothing, in two."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self._program = program = program.copy()
        self._device = device
        self._mode = mode_of(program)
        self._host_side = host_side(program, device)
        self._host = fx.Graph()
        self._rest = fx.Graph()
        self._on_host: dict[fx.Node, fx.Node] = {}
        self._on_device: dict[fx.Node, fx.Node] = {}
        self._numbers: list[Argument] = []
        """The elements of the vector: nodes of the host's graph, and constants."""
        self._elements: dict[fx.Node, fx.Node] = {}
        """Number or small tensor of the host -> the element of the vector."""
        self._casts: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}
        self._flags: dict[Argument, str] = {
            value: out.target for out, value in program.returns() if out.kind is OutputKind.SKIP
        }
        self._choices: dict[Argument, str] = {}
        """New value of a state of the host's -> the optimizer without whose step it stays."""
        self.late: list[tuple[str, str]] = []
        """(state, optimizer) of what the host writes when the step is over."""

    @property
    def count(self) -> int:
        """The length of the vector of numbers."""
        return len(self._numbers)

    def run(self) -> tuple[Program, Program]:
        """The host's half and the device's, both functional."""
        for node in self._program.placeholders:
            self._on_host[node] = self._host.node_copy(node)
            self._on_device[node] = self._rest.node_copy(node)
        self._vector = self._rest.placeholder("numbers")
        with neutral(), self._mode:
            self._element = torch.empty((), dtype=torch.float64, device=self._device)
        for node in self._program.nodes:
            if node.op == "get_attr":
                self._constant(node)
            elif node.target is library.keep and node in self._host_side:
                self._choose(node)
            elif node in self._choices:
                continue
            elif node.op == "call_function" and node in self._host_side:
                self._on_host[node] = self._host.node_copy(node, self._on_host.__getitem__)
            elif node.op == "call_function" and not self._is_made(node):
                self._device_node(node)
        return self._finished()

    def _choose(self, choice: fx.Node) -> None:
        """Take the new states: the old ones are there until the flag is read."""
        new = operands(choice, 1)
        for result in choice.users:
            self._on_host[result] = self._on_host[new[item(result)]]
            self._choices[result] = self._flags[choice.args[2]]

    def _is_made(self, node: fx.Node) -> bool:
        """True for a part of a result, made together with the whole."""
        return node in self._on_host or node in self._on_device

    # --- the device's half ------------------------------------------------------------------------

    def _constant(self, node: fx.Node) -> None:
        """Copy a constant to both halves; one on the CPU that the device reads moves there."""
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

    def _device_node(self, node: fx.Node) -> None:
        made: fx.Node | None
        if node.target in UPDATES:
            made = self._update(node)
        elif list_forms.fused(node) is not None:
            made = self._fused_update(node)
        else:
            args = fx.map_arg(node.args, self._as_tensor)
            kwargs = fx.map_arg(node.kwargs, self._as_tensor)
            made = self._with_numbers(node, args, kwargs)
        if made is not None:
            self._on_device[node] = made
            made.meta[STANDS_FOR] = identity(node)
        self._stamp(node)

    def _with_numbers(self, node: fx.Node, args: Any, kwargs: Any) -> fx.Node | None:
        """The node on the device; None for one that was taken apart."""
        if tensor_forms.fills_by_mask(node):
            return tensor_forms.filled(self._emit, args)
        if not numbers.moving(node):
            assert callable(node.target)
            made = self._rest.call_function(node.target, args, kwargs)
            made.meta.update(node.meta)
            return made
        op = list_forms.single(node)
        if node.target is library.update_scale:
            parts = tensor_forms.rescaled(self._emit, *args)
        elif op is None:
            return self._single(node.target, node.meta["val"], args, kwargs)
        else:
            calls = zip(node.meta["val"], list_forms.items(op, args, kwargs), strict=True)
            parts = [self._single(op, wanted, *given) for wanted, given in calls]
        for user in node.users:
            self._on_device[user] = parts[item(user)]
        return None

    def _single(self, target: Target, wanted: Any, args: Any, kwargs: Any) -> fx.Node:
        if tensor_forms.has_rule(target, wanted):
            return tensor_forms.rewritten(self._emit, target, wanted, args, kwargs)
        return numbers.with_tensors(self._rest, target, wanted, args, kwargs)

    def _as_tensor(self, used: fx.Node) -> fx.Node:
        """The device-side value of a node: the node itself, or an element of the vector."""
        if used in self._on_device and (
            used not in self._host_side or used.op == "get_attr" or self._is_large(used)
        ):
            return self._on_device[used]
        element = self._elements.get(used)
        if element is None:
            element = self._elements[used] = self._number(self._read(used))
        dtype = used.meta["val"].dtype if self._is_tensor(used) else torch.float64
        return self._cast(element, dtype)

    def _cast(self, value: Operand, dtype: torch.dtype) -> Operand | fx.Node:
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

    def _number(self, value: Argument) -> fx.Node:
        """A new element of the vector."""
        made = self._rest.call_function(aten.select.int, (self._vector, 0, len(self._numbers)))
        made.meta["val"] = self._element
        self._numbers.append(value)
        return made

    def _call(
        self,
        target: Callable[..., object],
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument] | None = None,
    ) -> fx.Node:
        return valued(self._mode, self._rest.call_function(target, args, kwargs or {}))

    def _emit(self, target: Callable[..., object], *args: Argument, **kwargs: Argument) -> fx.Node:
        return self._call(target, args, kwargs)

    def _stamp(self, origin: fx.Node) -> None:
        """Say where the nodes made last come from: the one of ``origin``, and reads of numbers."""
        made = self._on_device.get(origin)
        # Nodes are only ever appended: before the first that is stamped, all are.
        for node in reversed(self._rest.nodes):
            known = "provenance" in node.meta
            if node.op != "call_function" or (known and node is not made):
                break
            if not known:
                node.meta["provenance"] = made_by(provenance(origin), "halves")

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
                if (flag := node.kwargs.get("found_inf")) is not None:
                    self._choices[result] = self._flags[flag]
        return self._update_op(UPDATES[node.target], args, node)  # type: ignore[index]  # an op

    def _fused_update(self, node: fx.Node) -> fx.Node:
        """Our update op in the place of torch's fused kernel, which counts no steps by itself."""
        name, flags = list_forms.fused(node) or ("", {})
        args: list[Any] = [*fx.map_arg(node.args, self._as_tensor), []]
        if "steps" in (lists := update.RULES[name].lists):
            place = lists.index("steps")
            before = self._call(aten._foreach_add.Scalar, (args[place], -1))
            count = range(len(args[place]))
            args[place] = [self._call(operator.getitem, (before, i)) for i in count]
        return self._update_op(name, args, node, **flags)

    def _update_op(self, name: str, args: list[Argument], node: fx.Node, **flags: bool) -> fx.Node:
        kwargs: dict[str, Argument] = dict(flags)
        for key, value in node.kwargs.items():
            if isinstance(value, fx.Node):
                kwargs[key] = self._as_tensor(value)
                if key in update.RULES[name].numbers:
                    kwargs[key] = self._cast(kwargs[key], torch.float64)
            elif key in update.RULES[name].numbers:
                kwargs[key] = self._number(float(value))  # type: ignore[arg-type]  # a float
            elif key != "l1" or value:
                kwargs[key] = self._number(value) if key == "l1" else value
        return self._call(update.functional(name, device=True), tuple(args), kwargs)

    def _count(self, result: fx.Node, before: fx.Node) -> None:
        counted = self._host.call_function(aten.add.Tensor, (self._on_host[before], 1))
        counted.meta.update(result.meta)
        self._on_host[result] = counted

    # --- putting them together --------------------------------------------------------------------

    def _finished(self) -> tuple[Program, Program]:
        with neutral(), self._mode:
            vector = torch.empty(self.count, dtype=torch.float64, device=self._device)
        self._vector.meta["val"] = vector
        for element in self._vector.users:  # of a node that is copied as it is
            element.meta.setdefault("provenance", provenance(next(iter(element.users), element)))
        signature = self._program.signature
        pairs = self._program.returns()
        late = [(out, value) for out, value in pairs if value in self._choices]
        self.late = [(out.target, self._choices[value]) for out, value in late]
        now = [pair for pair in pairs if pair[1] not in self._choices]
        host = [(out, value) for out, value in now if self._is_hosts(value)]
        rest = [(out, value) for out, value in now if not self._is_hosts(value)]
        results = [self._on_host[v] if isinstance(v, fx.Node) else v for _, v in host]
        waiting = [self._on_host[value] for _, value in late]
        self._host.output((*results, *self._numbers, *waiting))
        self._rest.output(tuple(self._on_device[value] for _, value in rest))
        made = [OutputSpec(OutputKind.NUMBER, str(i)) for i in range(self.count + len(late))]
        own = replace(signature, outputs=(*(out for out, _ in host), *made))
        spec = InputSpec("numbers", Role.SCALAR, "numbers", TensorMeta.of(vector))
        others = tuple(out for out, _ in rest)
        theirs = replace(signature, inputs=(*signature.inputs, spec), outputs=others)
        return (
            Program(graph_module(self._program.gm, self._host), own),
            Program(graph_module(self._program.gm, self._rest), theirs),
        )

    def _is_hosts(self, value: object) -> bool:
        """True for a result that the host's half returns."""
        if not isinstance(value, fx.Node) or value in self._host_side:
            return True
        return value not in self._on_device
