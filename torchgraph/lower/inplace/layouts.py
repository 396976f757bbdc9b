"""Ops that depend on how their arguments lie in memory, written so that they do not.

A compiler lays values out as it likes: what it decomposes an op into has other strides than the
kernel that was recorded. So nothing in a region may rely on the strides of a value made there: a
view is a reshape, a stride is an index, and a kernel that asks for a layout is given it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from ..._torch import OpOverload, schema_of
from ...ir.aliasing import alias_sources
from ...ir.nodes import operand

aten = torch.ops.aten

_VIEWS = frozenset(
    getattr(aten, name).default for name in ("view", "_unsafe_view", "_reshape_alias", "reshape")
)
_WRITTEN_INTO: frozenset[OpOverload] = frozenset(
    {
        *(aten.diagonal_scatter.default, aten.select_scatter.default, aten.slice_scatter.default),
        *(aten.index_put.default, aten._unsafe_index_put.default),
    }
)
"""Compilers do these in the memory of the first argument, also where it was expanded."""
_ANY_LAYOUT = frozenset(
    {
        *("_log_softmax_backward_data", "_softmax_backward_data", "_safe_softmax"),
        *("_native_batch_norm_legit_functional", "native_batch_norm_backward"),
        *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        *("log_sigmoid_forward", "hardtanh_backward", "softplus_backward", "select_backward"),
        *(
            "slice_backward",
            "index_add",
            "baddbmm",
            "stack",
            "roll",
            "fill",
            "floor_divide",
            "copy",
        ),
        *("new_empty", "new_empty_strided", "new_zeros", "new_full", "new_ones"),
        *("ones_like", "zeros_like", "empty_like", "sum", "mean"),
    }
)
"""ATen ops, neither pointwise nor core, that compilers know by what they compute all the same."""
_KERNELS = frozenset(
    {
        *("_cdist_forward", "_pdist_forward", "_embedding_bag"),
        *("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d"),
    }
)
"""Core, and ATen's kernels are called all the same."""


def fits_in(first: torch.Tensor, result: torch.Tensor) -> bool:
    """True when the result fits into the first argument's memory, element by element."""
    if not all(type(size) is int for size in (*first.shape, *result.shape)):
        return False  # a size that depends on data
    same = (first.shape, first.dtype, first.device, first.stride()) == (
        result.shape,
        result.dtype,
        result.device,
        result.stride(),
    )
    return same and not overlaps_by_strides(first)


def overlaps_by_strides(value: torch.Tensor) -> bool:
    """True for a tensor that was expanded: several of its elements are one place in memory."""
    return any(n > 1 and s == 0 for n, s in zip(value.shape, value.stride(), strict=True))


class Layouts:
    """The writer of layout-independent ops in a region's graph."""

    def __init__(self, graph: fx.Graph, copies: Mapping[fx.Node, fx.Node]) -> None:
        """``copies``: node of the program -> its node in the region, for those written so far."""
        self._graph = graph
        self._copies = copies

    def written(self, node: fx.Node, args: tuple[Any, ...]) -> fx.Node | None:
        """The op on ``args``, nodes of the region; None for one that takes any layout as it is."""
        target = node.target
        if target in _VIEWS:
            return self._emit(aten.reshape.default, *args[:2])
        if target is aten.view.dtype:
            return self._emit(aten.view.dtype, self._contiguous(args[0]), *args[1:])
        if target is aten.view_as_complex.default:
            return self._emit(aten.view_as_complex.default, self._contiguous(args[0]))
        if target in (aten.as_strided.default, aten.as_strided_copy.default):
            return self._strided(node)
        if target is aten.as_strided_scatter.default:
            return self._scattered(node, args)
        return self._written_apart(node, args)

    def _written_apart(self, node: fx.Node, args: tuple[Any, ...]) -> fx.Node | None:
        """A scatter into an expanded value: into memory of its own."""
        op = node.target
        if not isinstance(op, OpOverload) or op not in _WRITTEN_INTO:
            return None
        if not overlaps_by_strides(operand(node).meta["val"]):
            return None
        return self._emit(op, self._contiguous(args[0]), *args[1:], **node.kwargs)

    def pinned(
        self, node: fx.Node, argument: Callable[[fx.Node], fx.Node]
    ) -> Callable[[fx.Node], fx.Node]:
        """``argument``, with the recorded layout where the kernel of ``node`` may ask for it."""
        if takes_any_layout(node):
            return argument
        return lambda source: self._laid_out(argument(source), source.meta.get("val"))

    # --- memory as it was recorded ----------------------------------------------------------------

    def _laid_out(self, value: fx.Node, wanted: object) -> fx.Node:
        """``value`` with the strides of ``wanted``; costs nothing where it has them."""
        order = _order(wanted) if isinstance(wanted, torch.Tensor) else None
        if order is None:
            return value
        if order == list(range(len(order))):
            return self._contiguous(value)
        back = [order.index(dim) for dim in range(len(order))]
        inner = self._contiguous(self._emit(aten.permute.default, value, order))
        return self._emit(aten.permute.default, inner, back)

    def _flat(self, value: fx.Node, recorded: torch.Tensor) -> fx.Node | None:
        """The elements in the order in which they lay in memory; None when there were gaps."""
        order = _order(recorded)
        if order is None:
            return None
        inner = self._emit(aten.permute.default, value, order)
        return self._emit(aten.reshape.default, inner, [-1])

    def _contiguous(self, value: fx.Node) -> fx.Node:
        return self._emit(aten.contiguous.default, value)

    # --- strides ----------------------------------------------------------------------------------

    def _strided(self, node: fx.Node) -> fx.Node | None:
        root = self._root(node)
        flat = self._flat(self._copies[root], root.meta["val"])
        index = self._index(node, root)
        if flat is None or index is None:
            return None
        return self._emit(aten.index.Tensor, flat, [index])

    def _scattered(self, node: fx.Node, args: tuple[Any, ...]) -> fx.Node | None:
        source = operand(node)
        recorded = source.meta["val"]
        flat, order = self._flat(args[0], recorded), _order(recorded)
        index = self._index(node, source)
        if flat is None or index is None or order is None:
            return None
        filled = self._emit(aten.index_put.default, flat, [index], args[1])
        ordered = [recorded.shape[dim] for dim in order]
        whole = self._emit(aten.reshape.default, filled, ordered)
        back = [order.index(dim) for dim in range(len(order))]
        return self._emit(aten.permute.default, whole, back)

    def _index(self, node: fx.Node, source: fx.Node) -> fx.Node | None:
        """The indices into ``source`` of an ``as_strided``; None when it reads other memory."""
        scatters = node.target is aten.as_strided_scatter.default
        named: Any = (*node.args[1 + scatters :], node.kwargs.get("storage_offset"))
        size, stride, offset = named[:3]
        own, held = operand(node).meta["val"], source.meta["val"]
        first = (own.storage_offset() if offset is None else offset) - held.storage_offset()
        last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        alike = (own.dtype, own.is_conj(), own.is_neg()) == (
            held.dtype,
            held.is_conj(),
            held.is_neg(),
        )
        if not alike or 0 in size or not 0 <= first <= last < held.numel():
            return None
        options = {"dtype": torch.int64, "device": held.device}
        index = self._emit(aten.full.default, [1] * len(size), first, **options)
        for dim, (count, step) in enumerate(zip(size, stride, strict=True)):
            line = self._emit(aten.arange.default, count, **options)
            shape = [count if one == dim else 1 for one in range(len(size))]
            placed = self._emit(aten.reshape.default, line, shape)
            scaled = self._emit(aten.mul.Tensor, placed, step)
            index = self._emit(aten.add.Tensor, index, scaled)
        return index

    def _root(self, node: fx.Node) -> fx.Node:
        """The node that allocated the memory of ``node``, or its region input."""
        found = operand(node)
        while True:
            through = operand(found) if found.target is operator.getitem else found
            sources = [one for one in alias_sources(through) if one in self._copies]
            if not sources:
                return found
            found = sources[0]

    def _emit(self, op: OpOverload, *args: Argument, **options: Argument) -> fx.Node:
        return self._graph.call_function(op, args, options)


def takes_any_layout(node: fx.Node) -> bool:
    """True for an op that computes the same whatever the strides of its arguments are."""
    target = node.target
    if not isinstance(target, OpOverload) or alias_sources(node):
        return True
    space, _, name = schema_of(target).name.partition("::")
    if space != "aten" or name in _KERNELS:
        return False
    tags = target.tags
    return torch.Tag.core in tags or torch.Tag.pointwise in tags or name in _ANY_LAYOUT


def _order(value: torch.Tensor) -> list[int] | None:
    """The dims from the outermost in memory to the innermost; None when memory has gaps."""
    sizes: Sequence[int] = value.shape
    strides = value.stride()
    order = sorted(range(len(sizes)), key=lambda dim: -strides[dim])
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    if value.is_contiguous():
        return list(range(len(sizes)))
    return order
