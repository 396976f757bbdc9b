"""Sparse embedding updates: plain SGD writes the rows that were looked up, not the whole table."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ...base import Pass

aten = torch.ops.aten
_DTYPES = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True)
class SparseEmbedding(Pass):
    """Turns ``table - lr * grad`` with the gradient of one lookup into an update of its rows.

    The dense gradient is never made. An index that occurs more than once has its gradients summed
    by the same kernel in the same order as before, and each row is computed as the dense update
    computes it; a row that was not looked up would have had zero added. So the results are bitwise
    equal on the CPU. OneFlow: IndexedSlicesOptimizerRewrite, ``add_optimizer(is_sparse=True)``.
    """

    name: ClassVar[str] = "sparse_embedding"
    least_ratio: int = 16
    """Rewrite where the table has at least so many times more rows than there are indices."""

    def exact(self, program: Program) -> bool:
        """True on the CPU, whose kernel sums the gradients of one row in the order of indices."""
        return all(
            spec.meta is None or spec.meta.device.type == "cpu" for spec in program.signature.inputs
        )

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Rewrite each lookup's gradient that one SGD update alone reads."""
        tables = _updates(program)
        for node in list(program.nodes):
            if node.target is aten.embedding_dense_backward.default:
                reason = self._reason_against(node, tables)
                if reason:
                    edit.refuse(node, reason)
                else:
                    _rewrite(node, edit)

    def _reason_against(self, gradient: Any, tables: dict[fx.Node, fx.Node]) -> str:
        _, indices, rows, _, scaled = gradient.args
        if len(gradient.users) != 1:
            return "something else reads the gradient of the table"
        (update,) = gradient.users
        table = tables.get(update)
        if table is None or not _is_plain_step(update, table, gradient):
            return (
                "the update is no plain step of SGD on this gradient alone: momentum, clipping, "
                "accumulation, a second use of the table, or an update fused with others"
            )
        if len(update.users) != 1:
            return "something else reads the new table"
        if table.meta["val"].dtype not in _DTYPES or not table.meta["val"].is_contiguous():
            return "the table is in half precision, or not contiguous"
        if scaled:
            return "scale_grad_by_freq: the scaled sum may round in another way"
        if rows < self.least_ratio * indices.meta["val"].numel():
            return f"the table has fewer than {self.least_ratio} rows for each index"
        return ""


def _updates(program: Program) -> dict[fx.Node, fx.Node]:
    """New value of a state -> its placeholder."""
    updates = program.states().items()
    return {value: state for state, value in updates if isinstance(value, fx.Node)}


def _is_plain_step(update: fx.Node, table: fx.Node, gradient: fx.Node) -> bool:
    return update.target is aten.add.Tensor and update.args == (table, gradient)


def _rewrite(gradient: Any, edit: Rewriter) -> None:
    grad, indices, _, padding, _ = gradient.args
    (update,) = gradient.users
    table = update.args[0]
    count = indices.meta["val"].numel()

    def call(target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        return edit.call(target, args, kwargs, before=update, like=update)

    with edit.together():
        if indices.meta["val"].dtype is not torch.int64:
            indices = call(aten._to_copy.default, indices, dtype=torch.int64)
        if padding >= 0:  # its gradient counts as zero
            mask = call(aten.unsqueeze.default, call(aten.eq.Scalar, indices, padding), -1)
            grad = call(aten.masked_fill.Scalar, grad, mask, 0)
        if not indices.meta["val"].is_contiguous():
            indices = call(aten.clone.default, indices, memory_format=torch.contiguous_format)
        # Equal indices find the same place: that of the first of them in sorted order.
        ordered = call(aten.sort.default, call(aten.view.default, indices, [count]))
        place = call(aten.searchsorted.Tensor, call(operator.getitem, ordered, 0), indices)
        summed = call(aten.embedding_dense_backward.default, grad, place, count, -1, False)
        slopes = call(aten.embedding.default, summed, place)
        rows = call(aten.embedding.default, table, indices)
        new = call(aten.add.Tensor, rows, slopes, **update.kwargs)
        # Equal indices write equal rows, so it does not matter which of them is last.
        edit.replace(update, call(aten.index_put.default, table, [indices], new))
        edit.erase(gradient)
