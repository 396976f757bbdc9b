"""Softmax cross-entropy in one op forward and one backward, no log-probabilities in between."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import fx

from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....ir.verify import PREDICATES
from ....library.definition import has_kernel
from ....library.dtypes import wide
from ...base import Pass
from .op import backward, forward
from .pattern import Loss, NotFused, find_loss

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
        """Each log-softmax is looked at once."""
        for node in list(program.nodes):
            if node.target is not aten._log_softmax.default:
                continue
            try:
                loss = find_loss(node)
            except NotFused as reason:
                edit.refuse(node, str(reason))
                continue
            if loss is None:
                continue
            device = loss.logits.meta["val"].device
            if not has_kernel(forward, device):
                edit.refuse(node, f"no kernel of cross_entropy is compiled for {device.type}")
            else:
                with edit.together():
                    _fuse(loss, edit)


# --- a cast of the logits before the loss ---------------------------------------------------------


class _Cast(NamedTuple):
    """Logits in half precision that the program casts, and whose gradient it casts back."""

    source: fx.Node
    back: fx.Node | None
    """The gradient in half precision; None without a backward."""
    between: tuple[fx.Node, ...]
    """From the loss's gradient to that: views."""


def _cast(loss: Loss) -> _Cast | None:
    copy: Any = loss.logits
    while copy.target in _VIEWS:
        copy = copy.args[0]
    if copy.target is not aten._to_copy.default:
        return None
    source, value = copy.args[0].meta["val"], copy.meta["val"]
    if source.dtype not in _HALF or value.dtype != torch.float32:
        return None
    if source.device != value.device or not (source.is_contiguous() and value.is_contiguous()):
        return None
    if loss.gradient is None:
        return _Cast(copy.args[0], None, ())
    between = [loss.gradient]
    while len(between[-1].users) == 1:
        (user,) = between[-1].users
        if user.target is aten._to_copy.default:
            back = user.meta["val"]
            same = (back.dtype, back.device) == (source.dtype, source.device)
            return _Cast(copy.args[0], user, tuple(between)) if same else None
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

    def place(target: Any, *args: Any, at: fx.Node) -> fx.Node:
        return edit.call(target, args, before=at, like=at)

    both = place(forward, logits, target, *options, at=first)
    result = place(operator.getitem, both, 0, at=first)
    if last is not None:
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
    above: list[Any] = [logits]
    while above[0].target in _VIEWS:
        above.insert(0, above[0].args[0])
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
