"""The gradient of a table that is looked up and multiplied with: rows are added in place."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import fx
from torch.fx.node import Argument

from ....ir.aliasing import alias_sources
from ....ir.nodes import operand
from ....ir.program import Phase, Program, provenance
from ....ir.rewriter import Rewriter
from ...base import Pass

aten = torch.ops.aten

_LOOKED_UP = aten.embedding_dense_backward.default
_DTYPES = (torch.float32, torch.float64)
"""In which rows can be added in place; torch gathers narrower ones before it rounds."""


@dataclass(frozen=True)
class ScatterEmbedding(Pass):
    """Adds an embedding's rows into the other gradient of a tied table.

    ``add(grad, embedding_dense_backward(rows, ids, ...))`` fills a table with zeros, adds some rows
    and reads all of it to add it to the other; ``index_add(grad, 0, ids, rows)``
    touches those rows alone. Compiled code writes into ``grad``, which nothing else reads. Not
    exact: an id that comes twice is added twice to the other gradient, not to zero first.
    """

    name: ClassVar[str] = "scatter_embedding"

    def exact(self, program: Program) -> bool:
        """Never: sums are rounded in another order."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Rewrite each addition of an embedding gradient as an in-place scatter, where allowed."""
        for node in list(program.nodes):
            if node.target is not aten.add.Tensor or provenance(node).phase is Phase.UPDATE:
                continue
            found = _addends(node)
            if found is None:
                continue
            reason = _reason_against(node, *found)
            if reason:
                edit.refuse(node, reason)
            else:
                _scatter(node, *found, edit)


def _addends(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The gradient of the rows, and the other one; None where that is not what is added."""
    calls = [a for a in node.args[:2] if isinstance(a, fx.Node) and a.op == "call_function"]
    for rows, other in (calls, calls[::-1]) if len(set(calls)) == 2 else ():
        if rows.target is _LOOKED_UP:
            return rows, other
    return None


def _lookup(rows: fx.Node) -> tuple[fx.Node, fx.Node, int, int, bool]:
    """The gradients of rows, their ids, the size of the table, its padding, by frequency."""
    return cast("tuple[fx.Node, fx.Node, int, int, bool]", rows.args)


def _reason_against(node: fx.Node, rows: fx.Node, other: fx.Node) -> str:
    if node.kwargs.get("alpha", 1) != 1:
        return "the addition scales one of its addends"
    _, ids, _, _, by_frequency = _lookup(rows)
    if by_frequency:
        return "the gradients of rows are divided by how often each was looked up"
    if len(rows.users) > 1 or len(other.users) > 1:
        return "something else reads one of the addends"
    value, table = other.meta["val"], rows.meta["val"]
    if value.shape != table.shape or value.dtype != table.dtype or value.dtype not in _DTYPES:
        return "the addends differ, or are in a narrow dtype"
    looked_up = ids.meta["val"].numel()
    if type(looked_up) is not int or type(table.shape[0]) is not int:
        return "a shape is symbolic"
    if looked_up >= table.shape[0]:
        return "as many rows are looked up as there are: the table is small"
    return "the other addend lies in memory of something else" if _is_view(other) else ""


def _is_view(node: fx.Node) -> bool:
    one_of_several = node.target is operator.getitem
    return bool(alias_sources(operand(node) if one_of_several else node))


def _scatter(node: fx.Node, rows: fx.Node, other: fx.Node, edit: Rewriter) -> None:
    grad, ids, _, padding, _ = _lookup(rows)
    with edit.together():
        if padding >= 0:
            padded = edit.call(aten.eq.Scalar, (ids, padding), before=node, like=rows)
            each = edit.call(aten.unsqueeze.default, (padded, -1), before=node, like=rows)
            grad = edit.call(aten.masked_fill.Scalar, (grad, each, 0.0), before=node, like=rows)
        width = other.meta["val"].shape[-1]
        flat = _viewed(ids, [-1], node, edit)
        grad = _viewed(grad, [-1, width], node, edit)
        target = aten.index_add.default  # a CPU adds in the order of the ids
        new = edit.call(target, (other, 0, flat, grad), before=node, like=node)
        edit.replace(node, new)
        edit.erase(rows)


def _viewed(node: fx.Node, shape: list[int], before: fx.Node, edit: Rewriter) -> fx.Node:
    if not node.meta["val"].is_contiguous():
        how: dict[str, Argument] = {"memory_format": torch.contiguous_format}
        node = edit.call(aten.clone.default, (node,), how, before=before, like=node)
    return edit.call(aten.view.default, (node, shape), before=before, like=node)
