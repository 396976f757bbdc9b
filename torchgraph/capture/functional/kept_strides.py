"""Writes whose functional form lays its result out otherwise, before a recording is traced again.

``x.masked_fill_(...)`` leaves a transposed tensor transposed, ``masked_fill`` returns a contiguous
one. What reads it next would go through its elements in another order, and vector code and its
remainder compute other last bits. Such a write becomes its functional form and a ``copy_``, and so
does ``torch.maximum(a, b, out=x)`` into one.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ..._torch import FakeTensorMode, OpOverload, schema_of
from ...ir import effects, nodes
from ...ir.aliasing import alias_sources
from ...ir.program import IN_PLACE, RECORDED, provenance
from ...ir.values import leaves, neutral
from .forms import (
    adds_up_by_layout,
    defaults,
    functional_op,
    is_dense,
    name_of,
    steps,
    value_of,
    without_out,
)
from .lost_writes import LostWrite

aten = torch.ops.aten
_EXACT = frozenset({
    *("abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cat", "ceil"),
    *("clamp", "clamp_max", "clamp_min", "div", "eq", "floor", "fmax", "fmin", "gather", "ge"),
    *("gt", "index_select", "le", "logical_and", "logical_not", "logical_or", "logical_xor", "lt"),
    *("maximum", "minimum", "mul", "ne", "neg", "reciprocal", "round", "sign", "sqrt", "stack"),
    *("sub", "take", "trunc", "where"),
})  # fmt: skip
"""Ops that move values, or whose result IEEE 754 fixes, in whatever order they go."""


def keep_strides(graph: fx.Graph, mode: FakeTensorMode) -> None:
    """Split writes whose functional form would change the strides into two nodes.

    Raises:
        LostWrite: one has no functional form that can be copied, or none with its bits.
    """
    with neutral():
        for node in list(graph.nodes):
            op = node.target
            if not isinstance(op, OpOverload) or not schema_of(op).is_mutable:
                continue
            if adds_up_by_layout(node):
                raise LostWrite(node, "adds up in an order that depends on where it writes")
            # copy_ keeps strides in both forms
            if op.namespace == "aten" and op is not aten.copy_.default:
                _keep(graph, node, mode)


def _keep(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode) -> None:
    op: Any = node.target
    outs = [
        node.kwargs[a.name] for a in schema_of(op).arguments if a.is_out and a.name in node.kwargs
    ]
    wholes = [one for one in effects.written_values(op, node.args) if _is_whole_and_not_dense(one)]
    if functional_op(op) is not None:
        if wholes:
            _split(graph, node, mode)
    elif any(map(_is_whole_and_not_dense, outs)):
        _split_out(graph, node, mode, outs)
    elif any(map(_has_gaps, wholes)):
        raise LostWrite(node, "writes what is not contiguous")


def _split_out(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode, outs: list[Any]) -> None:
    """An op and a ``copy_`` for an op that writes ``out=``.

    Raises:
        LostWrite: without it the op would go through its elements in another order, which may
            give other last bits.
    """
    op: Any = node.target
    functional = without_out(op)
    if functional is None or len(outs) != 1:
        raise LostWrite(node, "writes what is not contiguous")
    kwargs = {key: value for key, value in node.kwargs.items() if value is not outs[0]}
    value: Any = value_of(mode, functional, node.args, kwargs)
    written: torch.Tensor = outs[0].meta["val"]
    alike = value.shape == written.shape and steps(value) == steps(written)
    if not alike and (value.shape != written.shape or name_of(node) not in _EXACT):
        raise LostWrite(node, "writes what lies otherwise than its result would")
    with graph.inserting_before(node):
        new = nodes.call(graph, functional, node.args, kwargs)
        new.meta.update(val=value, provenance=provenance(node), **{RECORDED: True})
        copied = graph.call_function(aten.copy_.default, (outs[0], new))
        copied.meta.update(val=written, provenance=provenance(node))
    node.replace_all_uses_with(copied)
    graph.erase_node(node)


def _is_whole_and_not_dense(written: Any) -> bool:
    """True for a write of a whole non-dense tensor; a write of a part keeps strides."""
    value = written.meta.get("val") if isinstance(written, fx.Node) else None
    if not isinstance(value, torch.Tensor) or is_dense(value):
        return False
    whole: torch.Tensor = _root(written).meta["val"]
    return value.numel() == whole.numel()


def _has_gaps(node: fx.Node) -> bool:
    """True where a copy has other strides."""
    value: torch.Tensor = node.meta["val"]
    return steps(torch.empty_like(value)) != steps(value)


def _root(node: fx.Node) -> fx.Node:
    """The base that ``node`` is a view of."""
    while sources := alias_sources(node):
        if not isinstance(sources[0].meta.get("val"), torch.Tensor):
            return node
        node = sources[0]
    return node


def _split(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode) -> None:
    op: Any = node.target
    functional = functional_op(op)
    if functional is None:
        return
    args, kwargs = (*node.args, *defaults(node, functional)), dict(node.kwargs)
    value = value_of(mode, functional, args, kwargs)
    written = effects.written_values(op, node.args)
    results = list(leaves(value))
    alike = (
        steps(one.meta["val"]) == steps(new) for one, new in zip(written, results, strict=True)
    )
    if all(alike):
        return
    with graph.inserting_before(node):
        new = nodes.call(graph, functional, args, kwargs)
        new.meta.update(val=value, provenance=provenance(node), **{RECORDED: True, IN_PLACE: True})
        several = isinstance(value, (list, tuple))
        parts = [_part(new, index) for index in range(len(results))] if several else [new]
        for one, part in zip(written, parts, strict=True):
            copied = graph.call_function(aten.copy_.default, (one, part))
            copied.meta.update(val=one.meta["val"], provenance=provenance(node))
    if not several:
        node.replace_all_uses_with(copied)
    graph.erase_node(node)


def _part(node: fx.Node, index: int) -> fx.Node:
    part = node.graph.call_function(operator.getitem, (node, index))
    part.meta.update(val=node.meta["val"][index], provenance=provenance(node))
    return part
