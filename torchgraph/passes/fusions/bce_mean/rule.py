"""The mean binary cross-entropy of logits, and its gradient: an op for each."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ...._torch import OpOverload
from ....ir.nodes import operand
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....ir.values import same_layout
from ....library.definition import has_kernel
from ...base import Pass
from .op import backward, forward

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float64)


class _Loss(NamedTuple):
    """``mean((1 - target) * logits - log_sigmoid(logits))``."""

    logits: fx.Node
    target: fx.Node
    result: fx.Node
    """The last node of ``nodes``."""
    nodes: tuple[fx.Node, ...]
    """In program order."""


class _Gradient(NamedTuple):
    """``(sigmoid(logits) - target) * grad / numel``."""

    grad: fx.Node
    result: fx.Node
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class FuseBCEMean(Pass):
    """`torch.nn.functional.binary_cross_entropy_with_logits` becomes one op, its gradient another.

    ``torchgraph::bce_with_logits_mean``, for the mean of unweighted losses in float32 or float64,
    where the ops are compiled: their reference takes as long as the separate ops. Not exact: the
    losses are added up in another order. No option switches it on, but
    ``graph.config.passes.insert(FuseBCEMean(), after="dce")``. OneFlow: FuseBCEReduceMeanFwBwPass,
    which an environment variable switches on.
    """

    name: ClassVar[str] = "fuse_bce_mean"

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the loss around each log-sigmoid."""
        for node in list(program.nodes):
            if node.target is not aten.log_sigmoid_forward.default:
                continue
            loss = _find(node)
            reason = loss if isinstance(loss, str) else _reason_against(loss)
            if isinstance(loss, _Loss) and not reason:
                _fuse(loss, _gradient(loss), edit)
            elif reason:
                edit.refuse(node, reason)


# --- the loss -------------------------------------------------------------------------------------


def _find(log_sigmoid: fx.Node) -> _Loss | str:
    """The loss, or why it is none; the reason is empty when the node is no part of such a loss."""
    logits = operand(log_sigmoid)
    parts = {user.args[1]: user for user in log_sigmoid.users if user.target is operator.getitem}
    out, buffer = parts.get(0), parts.get(1)
    if out is None or len(out.users) != 1 or (buffer is not None and buffer.users):
        return ""
    (losses,) = out.users
    if losses.target is aten.mul.Tensor and _is_scaled_by_weights(losses):
        return "the losses are weighted"
    if losses.target is not aten.sub.Tensor or losses.args[1] is not out or losses.kwargs:
        return ""
    product = losses.args[0]
    negatives = _other_factor(product, logits)
    target = _one_minus(negatives)
    if target is None or not isinstance(product, fx.Node) or not isinstance(negatives, fx.Node):
        return ""
    result = _only_reader(losses, aten.mean.default)
    if result is None or result.kwargs:
        return "the losses are not averaged, or something else reads them"
    if len(product.users) != 1:
        return "something else reads a part of the losses"
    ones = _made_of_ones(negatives)
    nodes = {log_sigmoid, *parts.values(), *ones, negatives, product, losses, result}
    return _Loss(logits, target, result, tuple(sorted(nodes)))


def _is_scaled_by_weights(node: fx.Node) -> bool:
    """``log_sigmoid * (1 + (weights - 1) * target)``, which is subtracted from something."""
    return [user.target for user in node.users] == [aten.sub.Tensor]


def _only_reader(node: fx.Node, target: Target) -> fx.Node | None:
    """The only reader of ``node`` if it calls ``target``; else None."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _other_factor(product: Argument, factor: fx.Node) -> Argument:
    """The factor that ``factor`` is multiplied by in ``product``; None where it is not."""
    if not isinstance(product, fx.Node) or product.target is not aten.mul.Tensor:
        return None
    first, second = product.args
    return first if second is factor else second if first is factor else None


def _one_minus(node: Argument) -> fx.Node | None:
    """The node subtracted from ones; None for any other computation."""
    if not isinstance(node, fx.Node) or node.kwargs:
        return None
    if node.target is aten.rsub.Scalar and node.args[1:] == (1,):
        return operand(node)
    ones = node.args[0] if node.target is aten.sub.Tensor else None
    if not isinstance(ones, fx.Node) or not isinstance(node.args[1], fx.Node):
        return None
    of_ones = ones.target is aten.ones_like.default or (
        ones.target in (aten.fill.Scalar, aten.full_like.default, aten.full.default)
        and ones.args[1] == 1
    )
    return node.args[1] if of_ones else None


def _made_of_ones(negatives: fx.Node) -> list[fx.Node]:
    """The nodes that compute the ones of a subtraction from ones, back to the empty tensor."""
    found: list[fx.Node] = []
    ones = negatives.args[0] if negatives.target is aten.sub.Tensor else None
    while isinstance(ones, fx.Node) and ones.op == "call_function":
        found.insert(0, ones)
        ones = ones.args[0] if ones.target is aten.fill.Scalar else None
    return found


def _reason_against(loss: _Loss | str) -> str:
    if isinstance(loss, str):
        return loss
    logits, target = loss.logits.meta["val"], loss.target.meta["val"]
    if logits.dtype not in _DTYPES:
        return "half precision is rounded after each of the separate ops"
    if (logits.shape, logits.dtype) != (target.shape, target.dtype):
        return "the target is of another shape or dtype than the logits"
    if not has_kernel(forward, logits.device):
        return f"no kernel of bce_with_logits_mean is compiled for {logits.device.type}"
    return ""


# --- its gradient ---------------------------------------------------------------------------------


def _gradient(loss: _Loss) -> _Gradient | None:
    """The gradient by the logits, as autograd computes it; None where there is no such one."""
    for sigmoid in loss.logits.users:
        if sigmoid.target is not aten.sigmoid.default:
            continue
        for difference in sigmoid.users:
            if difference.args == (sigmoid, loss.target) and not difference.kwargs:
                found = _scaled(loss, sigmoid, difference)
                if found is not None:
                    return found
    return None


def _scaled(loss: _Loss, sigmoid: fx.Node, difference: fx.Node) -> _Gradient | None:
    product = _only_reader(difference, aten.mul.Tensor)
    if difference.target is not aten.sub.Tensor or product is None:
        return None
    grad = _other_factor(product, difference)
    quotient = _only_reader(product, aten.div.Scalar)
    logits = loss.logits.meta["val"]
    if quotient is None or quotient.args[1] != logits.numel():
        return None
    if not isinstance(grad, fx.Node) or grad.meta["val"].dim() != 0:
        return None
    if not same_layout(quotient.meta["val"], torch.empty_like(logits)):
        return None
    return _Gradient(grad, quotient, (sigmoid, difference, product, quotient))


# --- putting the ops ------------------------------------------------------------------------------


def _fuse(loss: _Loss, gradient: _Gradient | None, edit: Rewriter) -> None:
    with edit.together():
        _put(forward, (loss.logits, loss.target), loss.result, loss.nodes, edit)
        if gradient is not None:
            arguments = (gradient.grad, loss.logits, loss.target)
            _put(backward, arguments, gradient.result, gradient.nodes, edit)


def _put(
    op: OpOverload,
    args: tuple[Argument, ...],
    old: fx.Node,
    nodes: tuple[fx.Node, ...],
    edit: Rewriter,
) -> None:
    new = edit.call(op, args, before=old, like=old)
    edit.replace(old, new)
    for node in reversed(nodes):
        if node is not old and not node.users:
            edit.erase(node)
