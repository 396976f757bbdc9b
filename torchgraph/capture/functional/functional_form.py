"""The functional form of a recording, written node by node where no view is in the way.

Almost every in-place op of a training step changes a whole tensor whose views nobody reads
afterwards: it is its functional op, and readers take the result. Where a view of the changed memory
is read later, the general way (`functionalize`) traces the graph again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import Target

from ..._torch import (
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    fake_like,
    schema_of,
    storage_id,
)
from ...ir import effects, nodes
from ...ir.aliasing import storages_of
from ...ir.batch_norms import NATIVE, VENDOR, BatchNorm
from ...ir.each import Each
from ...ir.nodes import op_of
from ...ir.program import IN_PLACE, RECORDED, provenance
from ...ir.values import neutral, same_layout, tensors_of
from .forms import (
    adds_up_by_layout,
    defaults,
    functional_op,
    is_dense,
    is_mutable,
    name_of,
    steps,
    value_of,
)
from .lost_writes import reads_what_it_wrote
from .users_writes import MOVES

aten = torch.ops.aten
_Tensor = tuple[int, object]
"""One tensor: its storage, and its place in it."""
_SPLITTING = frozenset(
    {"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind"}
)
_BATCH_NORMS: dict[Target, BatchNorm] = {norm.writing: norm for norm in (NATIVE, VENDOR)}
_SAME_IN_ANY_LAYOUT = frozenset({"add", "sub", "mul", "neg", "clone", "detach"})
"""Element by element, without a function that vector code and its remainder compute differently."""


class _NeedsRetrace(Exception):
    """A view is read after the memory that it shows changed, or an op has no functional form."""


def functional_form(graph: fx.Graph, mode: FakeTensorMode) -> fx.Graph | None:
    """A functional copy of a recorded graph, each written placeholder closed by ``copy_``.

    None when a view is in the way.
    """
    try:
        with neutral():
            return _Copy(graph, mode).run()
    except _NeedsRetrace:
        return None


class _Copy:
    def __init__(self, graph: fx.Graph, mode: FakeTensorMode) -> None:
        self._graph = graph
        self._mode = mode
        self._new = fx.Graph()
        self._made: dict[fx.Node, fx.Node] = {}
        self._current: dict[_Tensor, fx.Node] = {}
        """Changed tensor -> the node that holds its value now."""
        self._renewed: set[fx.Node] = set()
        """New nodes whose fake value is not the recorded one."""
        self._dense: set[fx.Node] = set()
        """Those among them with other strides: the new value of a part of a split tensor."""
        self._aliases: set[fx.Node] = set()
        """New nodes that may begin elsewhere in their memory than the recorded ones."""
        self._parts: dict[_Tensor, fx.Node] = {}
        """Part of a split tensor -> the node that split it. Different parts share no element."""
        self._last_use: dict[fx.Node, int] = {}
        self._shown: dict[int, list[fx.Node]] = {}
        """Storage -> recorded nodes that are tensors in it."""
        self._order: dict[fx.Node, int] = {}
        for position, node in enumerate(graph.nodes):
            self._order[node] = position
            for used in node.all_input_nodes:
                self._last_use[used] = position
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self._shown.setdefault(storage_id(value), []).append(node)
                if node.target is operator.getitem and name_of(node.args[0]) in _SPLITTING:
                    self._parts[_tensor(value)] = node.all_input_nodes[0]

    def run(self) -> fx.Graph:
        for node in self._graph.nodes:
            if node.op == "placeholder":  # a tensor found in mid-trace is an input like any other
                self._copy(node)
        for node in self._graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._close(node)
            elif node.op != "placeholder":
                self._copy(node)
        return self._new

    def _copy(self, node: fx.Node) -> fx.Node:
        new = self._made[node] = nodes.copy(self._new, node, self._arguments(node))
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            new.meta["val"] = value
        elif self._shows_renewed(node) or not self._dense.isdisjoint(new.all_input_nodes):
            new.meta["val"] = self._value(new)
            self._renewed.add(new)
            self._note_strides(node, new)
        return new

    def _note_strides(self, recorded: fx.Node, new: fx.Node) -> None:
        old, value = recorded.meta["val"], new.meta["val"]
        if isinstance(old, torch.Tensor) and steps(old) != steps(value):
            self._dense.add(new)

    def _value(self, new: fx.Node) -> object:
        return value_of(self._mode, new.target, new.args, dict(new.kwargs))

    def _argument(self, node: fx.Node) -> fx.Node:
        """The new node that holds the value of a recorded one at this point."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return self._current.get(_tensor(value), self._made[node])
        return self._made[node]

    def _arguments(self, reader: fx.Node) -> Callable[[fx.Node], fx.Node]:
        """`_argument`, with eager's strides where ``reader`` might compute other bits without."""

        def argument(node: fx.Node) -> fx.Node:
            new = self._argument(node)
            if new in self._aliases and name_of(reader).startswith("as_strided"):
                raise _NeedsRetrace
            indifferent = name_of(reader) in _SAME_IN_ANY_LAYOUT and not reader.kwargs
            if new not in self._dense or indifferent:
                return new
            if not self._is_view(reader, node):
                return self._laid_out(new, node)
            if name_of(reader).startswith("as_strided"):
                raise _NeedsRetrace
            return new

        return argument

    def _is_view(self, reader: fx.Node, node: fx.Node) -> bool:
        if is_mutable(reader.target):
            return False
        return not set(storages_of(reader)).isdisjoint(storages_of(node))

    def _laid_out(self, value: fx.Node, recorded: fx.Node) -> fx.Node:
        wanted = recorded.meta["val"]
        size = (value, list(wanted.shape), list(wanted.stride()))
        blank = self._emit(recorded, aten.new_empty_strided.default, *size)
        return self._emit(recorded, aten.copy.default, blank, value)

    def _emit(self, recorded: fx.Node, op: OpOverload, *args: Any) -> fx.Node:
        new = self._new.call_function(op, args)
        new.meta["provenance"] = provenance(recorded)
        new.meta["val"] = self._value(new)
        return new

    def _shows_renewed(self, node: fx.Node) -> bool:
        """True for a view, or a part, of something that has another fake value now."""
        own = set(storages_of(node))
        return any(
            self._argument(arg) in self._renewed and not own.isdisjoint(storages_of(arg))
            for arg in node.all_input_nodes
        )

    def _call(self, node: fx.Node) -> None:
        if isinstance(node.target, HigherOrderOperator):
            raise _NeedsRetrace
        if isinstance(node.target, Each):
            self._rows(node, node.target)
        elif not is_mutable(node.target):
            self._copy(node)
        elif node.target in _BATCH_NORMS:
            self._batch_norm(node, _BATCH_NORMS[node.target])
        else:
            self._in_place(node)

    def _batch_norm(self, node: fx.Node, norm: BatchNorm) -> None:
        written = {out: node.args[arg] for out, arg in norm.statistics.items()}
        kept = [fake_like(self._mode, one) for one in tensors_of(list(written.values()))]
        value = (*node.meta["val"], *kept)
        new = self._made[node] = self._functional(node, norm.functional, value)
        new.meta[RECORDED] = True
        self._write_parts(node, new, written)

    def _rows(self, node: fx.Node, each: Each) -> None:
        columns: Any = node.args[0]
        written = each.updates(columns)
        args = fx.map_arg(node.args, self._arguments(node))
        new = self._made[node] = nodes.call(self._new, each, args, {})
        kept: Any = list(node.meta.get("val", ()))[: each.kept]
        value = kept + [fake_like(self._mode, one.meta["val"]) for one in written]
        new.meta.update(val=value, provenance=provenance(node))
        self._write_parts(node, new, dict(enumerate(written, start=each.kept)))

    def _in_place(self, node: fx.Node) -> None:
        op = node.target
        assert isinstance(op, OpOverload)
        if MOVES in node.meta and self._moved(node, *node.args[:2]):
            return
        if len(node.args) <= max(effects.written(op)):
            raise _NeedsRetrace
        functional = functional_op(op)
        if functional is None or adds_up_by_layout(node):
            raise _NeedsRetrace
        new = self._made[node] = self._functional(node, functional)
        written = effects.written_values(op, node.args)
        if isinstance(new.meta["val"], (list, tuple)):
            if reads_what_it_wrote(node, op):
                raise _NeedsRetrace
            self._write_parts(node, new, dict(enumerate(written)))
        else:
            self._write(node, written[0], new)

    def _moved(self, node: fx.Node, written: Any, source: Any) -> bool:
        """Let a value take the place of what it would be copied into, where it lies alike."""
        value = self._argument(source)
        if value in self._dense or not same_layout(written.meta["val"], value.meta["val"]):
            return False
        self._made[node] = value
        self._renewed.add(value)
        self._write(node, written, value)
        return True

    def _functional(self, node: fx.Node, op: OpOverload, value: object = None) -> fx.Node:
        """``value``: the new fake value, where it is known."""
        argument = self._arguments(node)
        args = fx.map_arg((*node.args, *defaults(node, op)), argument)
        kwargs = fx.map_arg(node.kwargs, argument)
        new = nodes.call(self._new, op, args, kwargs)
        new.meta["provenance"] = provenance(node)
        value = self._like_written(node) if value is None else value
        new.meta["val"] = self._value(new) if value is None else value
        new.meta[IN_PLACE] = True
        self._renewed.add(new)
        return new

    def _like_written(self, node: fx.Node) -> torch.Tensor | None:
        """The fake result of a plain in-place op's functional form, no kernel asked; else None."""
        written = effects.written_values(op_of(node), node.args)
        if len(written) != 1 or not isinstance(written[0], fx.Node):
            return None
        value = written[0].meta["val"]
        others = [other.meta["val"] for other in node.all_input_nodes]
        alike = all(
            (
                isinstance(other, torch.Tensor)
                and other.dtype == value.dtype
                and other.numel() <= value.numel()
                and other.ndim <= value.ndim
            )
            or isinstance(other, (torch.SymFloat, torch.SymInt))
            for other in others
        )
        returns = schema_of(op_of(node)).returns
        if not alike or len(returns) != 1 or not is_dense(value):
            return None
        return fake_like(self._mode, value)

    def _write_parts(self, node: fx.Node, new: fx.Node, parts: Mapping[int, object]) -> None:
        for index, written in parts.items():
            part = self._new.call_function(operator.getitem, (new, index))
            part.meta.update(val=new.meta["val"][index], provenance=provenance(node))
            self._renewed.add(part)
            self._write(node, written, part)

    def _write(self, at: fx.Node, written: object, value: fx.Node) -> None:
        """From here on, readers of ``written`` read ``value``."""
        if not isinstance(written, fx.Node) or written.meta.get("val") is None:
            raise _NeedsRetrace
        before = written.meta["val"]
        tensor = _tensor(before)
        split = self._parts.get(tensor)
        if not same_layout(before, value.meta["val"]):
            if not _same_but_for_strides(before, value.meta["val"]):
                raise _NeedsRetrace
            if split is None:
                value = self._laid_out(value, written)
                self._renewed.add(value)
                self._aliases.add(value)
            else:
                self._note_strides(written, value)
        for other in self._shown[tensor[0]]:
            place = _tensor(other.meta["val"])
            if place == tensor or (split is not None and self._parts.get(place) is split):
                continue
            made_before = self._order[other] < self._order[at]
            read_later = self._last_use.get(other, -1) > self._order[at]
            if made_before and (read_later or other.op == "placeholder"):
                if not _same_elements(before, other.meta["val"]):
                    raise _NeedsRetrace
                shape = list(other.meta["val"].shape)
                shown = self._emit(at, aten.view.default, value, shape)
                self._renewed.add(shown)
                self._note_strides(other, shown)
                self._current[place] = shown
        self._current[tensor] = value

    def _close(self, output: fx.Node) -> None:
        for node in self._graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and isinstance(value, torch.Tensor):
                new = self._argument(node)
                if new is not self._made[node]:
                    copy = self._new.call_function(aten.copy_.default, (self._made[node], new))
                    copy.meta.update(val=value, provenance=provenance(new))
        self._new.node_copy(output, self._argument)


def _tensor(value: torch.Tensor) -> _Tensor:
    if any(isinstance(size, torch.SymInt) for size in value.shape):
        raise _NeedsRetrace  # the shape depends on values, which cannot be told apart here
    place = (value.storage_offset(), tuple(value.shape), value.stride(), *_reading(value))
    return storage_id(value), place


def _reading(value: torch.Tensor) -> tuple[object, ...]:
    """The interpretation of a tensor's bytes."""
    return value.dtype, value.is_conj(), value.is_neg()


def _same_but_for_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (left.shape, left.dtype, left.device) == (right.shape, right.dtype, right.device)


def _same_elements(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True where both show all of the same elements in the same order: one is the other's view."""
    starts = [(held.storage_offset(), held.numel(), *_reading(held)) for held in (left, right)]
    if starts[0] != starts[1]:
        return False
    try:
        return steps(left.view(right.shape)) == steps(right)
    except (RuntimeError, ValueError):  # elements that lie apart otherwise
        return False
