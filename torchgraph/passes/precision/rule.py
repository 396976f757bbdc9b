"""Mixed precision as OneFlow has it: colour the nodes of a float32 program, insert casts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import fx
from torch.fx.node import Argument

from ..._torch import OpOverload, overload_name, schema_of
from ...ir import effects, values
from ...ir.nodes import op_of
from ...ir.program import Phase, Program, Role, provenance
from ...ir.rewriter import Rewriter
from ..base import Pass
from .lists import FLOAT_ON_CPU, KEPT, KEPT_ON_CPU, ONEFLOW, Lists

aten = torch.ops.aten

_STATES = frozenset({"weight", "bias", "running_mean", "running_var"})
_LAYOUT_COPIES = frozenset({aten.copy.default, aten.new_empty_strided.default})
"""With these autograd ends a parameter's gradient."""
_FACTORIES = frozenset(
    {
        aten.ones_like.default,
        aten.zeros_like.default,
        aten.empty_like.default,
        aten.full_like.default,
        aten.rand_like.default,
        aten.randn_like.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
    }
)
"""Ops that read the shape, strides and dtype of their first argument only."""


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Runs the forward and backward part in half precision between white ops.

    The colouring is OneFlow's. *Black* nodes are black ops and the gray and clear ones that follow
    them, up to a white op. In *half* are white ops, gray and clear nodes on a path from a white op
    to a white op or to a gradient, and clear nodes beside those. On each edge that crosses the
    border a float32 tensor is cast, once for all its readers. Parameters, gradients that the
    optimizers read, states and outputs stay float32, and so do batch norms' statistics and weights.

    Differs from OneFlow's: it works on the CPU too, micro-batches are summed in float32, and the
    scale of a grad scaler is multiplied in before the first cast. OneFlow: AutoMixedPrecision.
    """

    dtype: torch.dtype = torch.float16
    lists: Lists = field(default=ONEFLOW, repr=False)
    name: ClassVar[str] = "mixed_precision"
    retypes: ClassVar[bool] = True

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Colour the nodes, then insert casts."""
        half = Colours(program, self.lists).half
        if half:
            with edit.together():
                _Casts(self.dtype, half, edit).insert(program)


class Colours:
    """The colouring of a program's nodes: black ones, and those that run in half precision."""

    def __init__(self, program: Program, lists: Lists) -> None:
        self._lists = lists
        live, behind = _live(program), set(_behind_gradients(program))
        outside = behind | set(_without_data(program))
        self._nodes = [n for n in program.nodes if _is_op(n) and n in live and n not in outside]
        self._ends = {n for n in self._nodes if any(reader in behind for reader in _readers(n))}
        self.black: set[fx.Node] = set()
        self.half: set[fx.Node] = set()
        self._fill_black()
        self._fill_half()
        self._spread_through_clear()

    def _fill_black(self) -> None:
        starts = self._lists.black | self._lists.gray
        leading = self._reached(
            _readers,
            start=lambda n: _is_in(starts, n),
            enter=lambda n: _is_in(self._lists.clear, n),
        )
        self.black = self._reached(
            _sources, start=lambda n: _is_in(self._lists.black, n), enter=leading.__contains__
        )

    def _fill_half(self) -> None:
        lists = self._lists
        white = {n for n in self._nodes if _is_in(lists.white, n) and _may_be_half(n)}
        between = {
            n
            for n in self._nodes
            if _is_in(lists.gray | lists.clear, n) and _may_be_half(n) and n not in self.black
        }
        leading = self._reached(
            _readers,
            start=lambda n: n in white or (n in self._ends and n in between),
            enter=between.__contains__,
        )
        self.half = self._reached(_sources, start=white.__contains__, enter=leading.__contains__)

    def _spread_through_clear(self) -> None:
        for neighbours in (_sources, _readers):
            self.half |= self._reached(
                neighbours,
                start=self.half.__contains__,
                enter=lambda n: (
                    n not in self.black and _is_in(self._lists.clear, n) and _may_be_half(n)
                ),
            )

    def _reached(
        self,
        neighbours: Callable[[fx.Node], Iterator[fx.Node]],
        start: Callable[[fx.Node], bool],
        enter: Callable[[fx.Node], bool],
    ) -> set[fx.Node]:
        """The nodes that ``start`` accepts, and those ``enter`` accepts beside a node reached."""
        found: set[fx.Node] = set()
        for node in self._nodes if neighbours is _sources else reversed(self._nodes):
            entered = enter(node) and any(other in found for other in neighbours(node))
            if entered or start(node):
                found.add(node)
        return found


class _Casts:
    """Inserts the casts and types every node anew. ``half``: the nodes to run in half precision."""

    def __init__(self, dtype: torch.dtype, half: set[fx.Node], edit: Rewriter) -> None:
        self._dtype = dtype
        self._half = half
        self._edit = edit
        self._made: dict[fx.Node, fx.Node] = {}
        """A tensor -> the same in the other precision."""
        self._changed: set[fx.Node] = set()
        """Nodes that have another type, or other strides, than before."""
        self._lowered: set[fx.Node] = set()
        """Values that were float32 and are not any more."""

    def insert(self, program: Program) -> None:
        """In program order: when a node's turn comes, its arguments have their final types."""
        for node in list(program.nodes):
            if node.op == "call_function":
                self._type(node)
        results = enumerate(program.results)
        outward = {i: v for i, v in results if isinstance(v, fx.Node) and v in self._lowered}
        if outward:
            output = program.output
            self._edit.outputs({i: self._cast(v, v, output) for i, v in outward.items()})

    def _type(self, node: fx.Node) -> None:
        args, kwargs = self._arguments(node)
        changed = (args, kwargs) != (node.args, dict(node.kwargs))
        if not changed and not any(source in self._changed for source in node.all_input_nodes):
            return
        before, was_float = node.meta.get("val"), _is_float(node)
        self._edit.recall(node, args, kwargs)
        if values.difference(before, node.meta["val"]):
            self._changed.add(node)
        if was_float and not _is_float(node):
            self._lowered.add(node)

    def _arguments(self, node: fx.Node) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        kwargs = dict(node.kwargs)
        if node.target is operator.getitem:
            return node.args, kwargs
        half, kept = node in self._half, _kept(node)
        if node.target in _FACTORIES and not half:
            if node.args[0] in self._lowered and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float32
            return node.args, kwargs

        def argument(name: str, value: Argument) -> Argument:
            if half and name == "input_dtype":
                return self._dtype
            if name in kept and name not in _STATES:
                return value
            up = name in kept or not half
            return fx.node.map_arg(value, lambda tensor: self._argument(tensor, node, up))

        names = _names(node)
        args = tuple(argument(*pair) for pair in zip(names, node.args, strict=False))
        return args, {name: argument(name, value) for name, value in kwargs.items()}

    def _argument(self, tensor: fx.Node, reader: fx.Node, up: bool) -> fx.Node:
        if up:
            return self._cast(tensor, tensor, reader) if tensor in self._lowered else tensor
        return self._cast(tensor, reader, reader) if _is_float(tensor) else tensor

    def _cast(self, tensor: fx.Node, like: fx.Node, reader: fx.Node) -> fx.Node:
        """``tensor`` in the other precision; made before its first reader."""
        if tensor not in self._made:
            dtype = torch.float32 if tensor in self._lowered else self._dtype
            self._made[tensor] = self._edit.call(
                aten._to_copy.default, (tensor,), {"dtype": dtype}, before=reader, like=like
            )
        return self._made[tensor]


def _is_op(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload)


def _is_in(names: frozenset[str], node: fx.Node) -> bool:
    return _op(node) in names or f"{_op(node)}.{_overload(node)}" in names


def _op(node: fx.Node) -> str:
    """``mm``; with its namespace where that is not aten."""
    name: str = schema_of(op_of(node)).name
    return name.removeprefix("aten::")


def _overload(node: fx.Node) -> str:
    found: str = overload_name(op_of(node))
    return found


def _names(node: fx.Node) -> list[str]:
    """The names of the arguments, in order; empty ones for a call of a Python function."""
    if not isinstance(node.target, OpOverload):
        return [""] * len(node.args)
    return [argument.name for argument in schema_of(node.target).arguments]


def _kept(node: fx.Node) -> tuple[str, ...]:
    if not _is_op(node):
        return ()
    if _on_cpu(node):
        return (*KEPT.get(_op(node), ()), *KEPT_ON_CPU.get(_op(node), ()))
    return KEPT.get(_op(node), ())


def _on_cpu(node: fx.Node) -> bool:
    return any(tensor.device.type == "cpu" for tensor in values.tensors_of(node))


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def _may_be_half(node: fx.Node) -> bool:
    """True when all that it computes with is float32, as the user left it."""
    tensors = values.tensors_of([node, *node.all_input_nodes])
    dtypes = {t.dtype for t in tensors if t.dtype.is_floating_point or t.dtype.is_complex}
    asked = node.kwargs.get("dtype") is not None  # sum(x, dtype=torch.float32)
    results = any(t.dtype is torch.float32 for t in values.tensors_of(node))
    on_cpu = _on_cpu(node) and _op(node) in FLOAT_ON_CPU
    return results and dtypes == {torch.float32} and not asked and not on_cpu


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """The calls whose results a node reads."""
    for source in node.all_input_nodes:
        yield from source.all_input_nodes if source.target is operator.getitem else (source,)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The calls that read a result of a node."""
    for user in node.users:
        yield from user.users if user.target is operator.getitem else (user,)


def _live(program: Program) -> set[fx.Node]:
    """The nodes that outputs, and calls with effects, depend on."""
    found = {program.output}
    for node in reversed(list(program.nodes)):
        if node in found or not effects.of(node).pure:
            found.update((node, *node.all_input_nodes))
    return found


def _behind_gradients(program: Program) -> Iterator[fx.Node]:
    """The update, and what else reads the gradients of parameters: all of it in float32."""
    found: set[fx.Node] = set()
    for node in program.nodes:
        phase = provenance(node).phase
        copies = node.target in _LAYOUT_COPIES and phase is Phase.BACKWARD
        reads = any(source in found for source in node.all_input_nodes)
        if _is_op(node) and (phase is Phase.UPDATE or copies or reads):
            found.add(node)
            yield node
        elif node.target is operator.getitem and reads:
            found.add(node)


def _without_data(program: Program) -> Iterator[fx.Node]:
    """Nodes computed from shapes and scales alone: future masks, the first gradient of a backward.

    A scale does not fit into float16, and what it is multiplied with is 1 or divided by k.
    """
    specs = program.inputs()
    data = {node for spec, node in specs if spec.role is not Role.SCALER}
    for node in program.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "get_attr" or (
            node.target not in _FACTORIES and any(s in data for s in node.all_input_nodes)
        ):
            data.add(node)
        elif _is_op(node):
            yield node
