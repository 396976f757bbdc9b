"""The last product and its softmax cross-entropy, forward and backward, become one op."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch.fx.node import Argument

from ....ir.nodes import operand
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....ir.verify import PREDICATES
from ....library.definition import has_kernel
from ....library.dtypes import wide
from ...base import Pass
from ..cross_entropy import op as chunks
from ..search import NotFused, fuse_each
from .op import linear_cross_entropy
from .pattern import Head, find_head, of_columns

aten = torch.ops.aten


@dataclass(frozen=True)
class FuseLinearCrossEntropy(Pass):
    """``mm``, softmax cross-entropy and their backward: ``torchgraph::linear_cross_entropy``.

    Neither the logits nor their gradient are ever whole. With all that `FuseCrossEntropy` knows of
    the loss, and between product and loss a cast to float32, views and slices of rows, and a
    softcap ``c * tanh(x / c)``. Not exact: sums are taken in another order.
    """

    least_size: int = 1 << 20
    """Fewer logits stay: they are in the cache anyway."""

    name: ClassVar[str] = "fuse_linear_cross_entropy"
    rows: ClassVar[bool] = True
    removes: ClassVar[frozenset[str]] = frozenset({PREDICATES})

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the head around each log-softmax."""
        fuse_each(program, self._found, _fuse, edit)

    def _found(self, node: fx.Node) -> Head | None:
        head = find_head(node)
        if head is None:
            return None
        product = head.product.meta["val"]
        if product.numel() < self.least_size:
            raise NotFused(f"there are fewer than {self.least_size:,} logits")
        if not has_kernel(chunks.forward, product.device):
            raise NotFused(f"no kernel of cross_entropy is compiled for {product.device.type}")
        return head


def _fuse(head: Head, edit: Rewriter) -> None:
    """The op in the place of the loss; what gives the gradient of the loss moves before it."""
    loss, first, old = head.loss, head.loss.forward, head.nodes
    way, back = head.rows
    grad = _moved_seed(head, edit)
    product = head.product.meta["val"]
    target, weight, reduction, ignored = loss.options
    wanted = [bool(found) for found in (head.of_hidden, head.of_weight, head.of_bias)]
    wanted[1] |= bool(head.of_transposed)
    arguments: tuple[Argument, ...] = (
        _on_rows(way, head.hidden, edit, first),
        _weight(head, edit),
        head.bias,
        target,
        *(each and _converted(each, wide(product.dtype), first, edit) for each in (grad, weight)),
        *(reduction, ignored, loss.smoothing, head.softcap, head.widened, wanted),
    )
    both = edit.call(linear_cross_entropy, arguments, before=first, like=first)
    for node in head.of_hidden:
        _put(node, _on_rows(back, _taken(both, 1, node, first, edit), edit, first), edit)
    for node in head.of_weight:
        _put(node, _taken(both, 2, node, first, edit), edit)
    for node in head.of_transposed:
        given = _taken(both, 2, node, first, edit)
        _put(node, edit.call(aten.t.default, (given,), before=first, like=node), edit)
    for node in head.of_bias:
        _put(node, _taken(both, 3, node, first, edit), edit)
    result = _taken(both, 0, first, first, edit)
    edit.replace(loss.result, _converted(result, loss.result.meta["val"].dtype, first, edit))
    for node in reversed([one for one in old if one not in (*head.results, loss.result)]):
        if not node.users:
            edit.erase(node)


def _taken(both: fx.Node, place: int, like: fx.Node, before: fx.Node, edit: Rewriter) -> fx.Node:
    return edit.call(operator.getitem, (both, place), before=before, like=like)


def _moved_seed(head: Head, edit: Rewriter) -> fx.Node | None:
    """The gradient of the loss, computed before the loss."""
    first, grad = head.loss.forward, head.loss.grad
    for node, number in head.filled.items():
        value = node.meta["val"]
        how = {"dtype": value.dtype, "device": value.device}
        full = (list(value.shape), number)
        new = edit.call(aten.full.default, full, how, before=first, like=node)
        grad = new if grad is node else grad
        edit.replace(node, new)
    for node in head.moved:
        edit.move(node, before=first)
    return grad


def _weight(head: Head, edit: Rewriter) -> fx.Node:
    """The right factor as (C, H)."""
    right = head.right
    if right.target is aten.t.default:
        return operand(right)
    return edit.call(aten.t.default, (right,), before=head.loss.forward, like=head.product)


def _on_rows(nodes: Sequence[fx.Node], given: fx.Node, edit: Rewriter, before: fx.Node) -> fx.Node:
    """The same rows of ``given`` as the nodes make of the logits or their gradient."""
    for node in nodes:
        target, args, kwargs = of_columns(node, given.meta["val"].shape[-1])
        given = edit.call(target, (given, *args), kwargs, before=before, like=node)
    return given


def _put(node: fx.Node, new: fx.Node, edit: Rewriter) -> None:
    """Let ``new`` be the gradient ``node``, in its shape and layout."""
    shape = list(node.meta["val"].shape)
    if list(new.meta["val"].shape) != shape:
        new = edit.call(aten.view.default, (new, shape), before=node, like=node)
    elif new.meta["val"].stride() != node.meta["val"].stride():
        how: dict[str, Argument] = {"memory_format": torch.contiguous_format}
        new = edit.call(aten.clone.default, (new,), how, before=node, like=node)
    edit.replace(node, new)


def _converted(node: fx.Node, dtype: torch.dtype, before: fx.Node, edit: Rewriter) -> fx.Node:
    if node.meta["val"].dtype == dtype:
        return node
    return edit.call(aten._to_copy.default, (node,), {"dtype": dtype}, before=before, like=before)
