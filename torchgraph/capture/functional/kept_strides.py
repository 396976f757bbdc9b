"""Writes whose functional form lays its result out otherwise, before a recording is traced again.

``x.masked_fill_(...)`` leaves a transposed tensor transposed, ``masked_fill`` returns a contiguous
one. What reads it next would go through its elements in another order, and vector code and its
remainder compute other last bits. Such a write becomes its functional form and a ``copy_``.
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
from .forms import adds_up_by_layout, defaults, functional_op, is_dense, steps, value_of
from .lost_writes import LostWrite

aten = torch.ops.aten


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
                raise LostWrite(f"{op} adds up in an order that depends on where it writes")
            # copy_ keeps strides in both forms
            if op.namespace == "aten" and op is not aten.copy_.default:
                _keep(graph, node, mode)


def _keep(graph: fx.Graph, node: fx.Node, mode: FakeTensorMode) -> None:
    op: Any = node.target
    outs = [node.kwargs.get(a.name) for a in schema_of(op).arguments if a.is_out]
    wholes = [one for one in effects.written_values(op, node.args) if _is_whole_and_not_dense(one)]
    if functional_op(op) is not None:
        if wholes:
            _split(graph, node, mode)
    elif any(map(_is_whole_and_not_dense, outs)) or any(map(_has_gaps, wholes)):
        raise LostWrite(f"{op} writes what is not contiguous")


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
