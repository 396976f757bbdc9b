"""Softmax cross-entropy in one op forward and one backward, no log-probabilities in between."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ....ir.nodes import operand
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....ir.verify import PREDICATES
from ....library.definition import has_kernel
from ....library.dtypes import wide
from ...base import Pass
from ..search import NotFused, fuse_each
from .op import backward, forward
from .pattern import Loss, find_loss

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_VIEWS = (aten.view.default, aten._unsafe_view.default)


@dataclass(frozen=True)
class FuseCrossEntropy(Pass):
    """``_log_softmax``, ``nll_loss`` and their backward become ``torchgraph::cross_entropy``.

    Also with label smoothing, class weights, an ignored index, any reduction, and a cast of the
    logits from half precision before them: then the op reads and writes half precision. The
    gradient takes the place of the logits where nothing reads those any more. Not exact: sums are
    taken in another order. No option switches it on, but
    ``graph.config.passes.insert(FuseCrossEntropy(), after="dce")``. OneFlow:
    sparse_softmax_cross_entropy, always.
    """

    name: ClassVar[str] = "fuse_cross_entropy"
    removes: ClassVar[frozenset[str]] = frozenset({PREDICATES})

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the loss around each log-softmax."""
        fuse_each(program, _compiled_loss, _fuse, edit)


def _compiled_loss(log_softmax: fx.Node) -> Loss | None:
    """The loss of a log-softmax; None for any other node. Raises `NotFused`."""
    if log_softmax.target is not aten._log_softmax.default:
        return None
    loss = find_loss(log_softmax)
    if loss is not None:
        device = loss.logits.meta["val"].device
        if not has_kernel(forward, device):
            raise NotFused(f"no kernel of cross_entropy is compiled for {device.type}")
    return loss


# --- a cast of the logits before the loss ---------------------------------------------------------


class _Cast(NamedTuple):
    """Logits in half precision that the program casts, and whose gradient it casts back."""

    source: fx.Node
    back: fx.Node | None
    """The gradient in half precision; None without a backward."""
    between: tuple[fx.Node, ...]
    """From the loss's gradient to that: views."""


def _cast(loss: Loss) -> _Cast | None:
    copy = loss.logits
    while copy.target in _VIEWS:
        copy = operand(copy)
    if copy.target is not aten._to_copy.default:
        return None
    half = operand(copy)
    source, value = half.meta["val"], copy.meta["val"]
    if source.dtype not in _HALF or value.dtype != torch.float32:
        return None
    if source.device != value.device or not (source.is_contiguous() and value.is_contiguous()):
        return None
    if loss.gradient is None:
        return _Cast(half, None, ())
    between = [loss.gradient]
    while len(between[-1].users) == 1:
        (user,) = between[-1].users
        if user.target is aten._to_copy.default:
            back = user.meta["val"]
            same = (back.dtype, back.device) == (source.dtype, source.device)
            return _Cast(half, user, tuple(between)) if same else None
        if user.target not in _VIEWS:
            return None
        between.append(user)
    return None


# --- putting the ops ------------------------------------------------------------------------------


def _fuse(loss: Loss, edit: Rewriter) -> None:
    """The loss's op where its first reader may be, the gradient's op where the gradient was."""
    first, last, cast = loss.forward, loss.gradient, _cast(loss)
    old = [*_chain_above(loss.logits), *loss.nodes] if cast else loss.nodes
    logits = _viewed(cast.source, loss.shape, first, edit) if cast else loss.logits
    dtype = wide(logits.meta["val"].dtype)
    target, weight, reduction, ignored = loss.options
    weight = None if weight is None else _converted(weight, dtype, first, edit)
    options = (weight, reduction, ignored, loss.smoothing)

    def place(target: Target, *args: Argument, at: fx.Node) -> fx.Node:
        return edit.call(target, args, before=at, like=at)

    both = place(forward, logits, target, *options, at=first)
    result = place(operator.getitem, both, 0, at=first)
    if last is not None and loss.grad is not None:
        lse, total = (place(operator.getitem, both, index, at=last) for index in (1, 2))
        grad = _converted(loss.grad, dtype, last, edit)
        new = place(backward, logits, grad, target, lse, total, *options, at=last)
        if cast is not None and cast.back is not None:
            new = _viewed(new, list(cast.back.meta["val"].shape), cast.back, edit)
            edit.replace(cast.back, new)
            _erase(cast.between, edit)
        else:
            edit.replace(last, new)
    edit.replace(loss.result, _converted(result, loss.result.meta["val"].dtype, first, edit))
    _erase([node for node in old if node not in (loss.result, last)], edit)


def _chain_above(logits: fx.Node) -> list[fx.Node]:
    """The cast and the views between it and the logits."""
    above = [logits]
    while above[0].target in _VIEWS:
        above.insert(0, operand(above[0]))
    return above


def _erase(nodes: Sequence[fx.Node], edit: Rewriter) -> None:
    for node in reversed(nodes):
        if not node.users:
            edit.erase(node)


def _viewed(node: fx.Node, shape: list[int], before: fx.Node, edit: Rewriter) -> fx.Node:
    if list(node.meta["val"].shape) == shape:
        return node
    return edit.call(aten.view.default, (node, shape), before=before, like=before)


def _converted(node: fx.Node, dtype: torch.dtype, before: fx.Node, edit: Rewriter) -> fx.Node:
    if node.meta["val"].dtype == dtype:
        return node
    return edit.call(aten._to_copy.default, (node,), {"dtype": dtype}, before=before, like=before)
