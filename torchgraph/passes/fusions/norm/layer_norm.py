"""Layer norm takes in the residual addition before it, its backward the addition of a gradient."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from ....ir.nodes import item, operand, sequence
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....library.definition import has_kernel
from ...base import Pass
from ...pattern import plain_sum
from .op import add_layer_norm, add_layer_norm_backward

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class FuseLayerNorm(Pass):
    """``native_layer_norm(add(x, residual))`` becomes ``torchgraph::add_layer_norm``.

    And ``native_layer_norm_backward`` whose gradient is added to another one, as it is where the
    sum is read by a residual connection too, becomes ``torchgraph::add_layer_norm_backward``. For
    float32 and float64 on the CPU, where both were measured to be faster. Not exact: sums are taken
    in another order. OneFlow: FuseAddToOutputPass, of layer_norm_grad.
    """

    name: ClassVar[str] = "fuse_layer_norm"
    least_size: int = 32_768
    """Numbers to normalize from which on the op takes less time than ATen's and the addition."""

    def exact(self, program: Program) -> bool:
        """Never."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fuse the addition before each layer norm, and the one behind each gradient of one."""
        for node in list(program.nodes):
            if node.target is aten.native_layer_norm.default:
                reason = self._reason_against(node, operand(node)) or _forward(node, edit)
            elif node.target is aten.native_layer_norm_backward.default:
                reason = self._reason_against(node, operand(node, 1)) or _backward(node, edit)
            else:
                continue
            if reason:
                edit.refuse(node, reason)

    def _reason_against(self, node: fx.Node, normalized: fx.Node) -> str:
        value = normalized.meta["val"]
        weight = node.args[2] if node.target is aten.native_layer_norm.default else node.args[5]
        shape = node.args[1] if node.target is aten.native_layer_norm.default else node.args[2]
        if value.device.type != "cpu" or value.dtype not in _DTYPES:
            return "only float32 and float64 on the CPU were measured to gain"
        if len(sequence(shape)) != 1 or not isinstance(weight, fx.Node):
            return "more than the last dimension is normalized, or there is no weight"
        if weight.meta["val"].dtype != value.dtype or not value.is_contiguous():
            return "the weight is of another dtype, or the values are not contiguous"
        if value.numel() < self.least_size:
            return "there are too few numbers for the op to gain"
        if not has_kernel(add_layer_norm, value.device):
            return "no kernel of add_layer_norm is compiled for cpu"
        return ""


def _forward(node: fx.Node, edit: Rewriter) -> str:
    """Take in the addition of a residual if there is one. Returns what is against it."""
    _, _, weight, bias, eps = node.args
    total = operand(node)
    addends = plain_sum(total)
    if addends is None:
        return ""  # no residual
    if any(isinstance(each, fx.Node) and each > total for each in (weight, bias)):
        return "weight or bias is computed after the sum"
    with edit.together():
        new = edit.call(add_layer_norm, (*addends, weight, bias, eps), before=total, like=node)
        _replace_parts(node, new, (1, 2, 3), total, edit)
        edit.replace(total, _part(new, 0, total, edit))
    return ""


def _backward(node: fx.Node, edit: Rewriter) -> str:
    """Take in the addition of another gradient if there is one. Returns what is against it."""
    grad_out, normalized, _, mean, rstd, weight, _, _ = node.args
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    gradient = parts.get(0)
    readers = list(gradient.users) if gradient is not None else []
    addends = plain_sum(readers[0]) if len(readers) == 1 else None
    if gradient is None or addends is None or addends[0] is addends[1]:
        return ""  # no other gradient
    total = readers[0]
    other = addends[1] if addends[0] is gradient else addends[0]
    if not (total.meta["val"].is_contiguous() and other.meta["val"].is_contiguous()):
        return "the other gradient is not contiguous"
    place = node if other < node else total
    of_parameters = [user for index in (1, 2) if index in parts for user in parts[index].users]
    if any(user < place for user in of_parameters):
        return "the gradient by a parameter is read before the other gradient is there"
    arguments = (grad_out, other, normalized, mean, rstd, weight)
    with edit.together():
        new = edit.call(add_layer_norm_backward, arguments, before=place, like=node)
        edit.replace(total, _part(new, 0, place, edit))
        edit.erase(gradient)
        _replace_parts(node, new, (0, 1, 2), place, edit)
    return ""


def _replace_parts(
    node: fx.Node, new: fx.Node, places: tuple[int, ...], before: fx.Node, edit: Rewriter
) -> None:
    """Replace each result of ``node`` by the one of ``new`` at its place, and erase ``node``."""
    for user in list(node.users):
        edit.replace(user, _part(new, places[item(user)], before, edit))
    edit.erase(node)


def _part(node: fx.Node, index: int, before: fx.Node, edit: Rewriter) -> fx.Node:
    return edit.call(operator.getitem, (node, index), before=before, like=node)
