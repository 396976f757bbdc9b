"""Batch norm folding: a batch norm in eval mode becomes part of the convolution before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx
from torch.fx.node import Argument, Target

from ....ir.batch_norms import FORWARD, evaluates
from ....ir.nodes import operand
from ....ir.program import Program
from ....ir.rewriter import Rewriter
from ....ir.values import same_layout
from ...base import Pass

aten = torch.ops.aten

_DTYPES = frozenset({torch.float32, torch.float64})


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """``bn(conv(x, w, b))`` in eval mode becomes ``conv(x, w * s, (b - mean) * s + beta)``.

    ``s`` is ``gamma / sqrt(var + eps)``. Weights and statistics may change between calls without a
    trace (``p.data.copy_``), so the program computes the folded weight in each call: that costs a
    pass over the weight, and saves one over the output of the convolution. Not exact: a product
    is rounded before the sum, not after. OneFlow: conv-bn folding of the inference optimization.
    """

    name: ClassVar[str] = "fold_batch_norm"
    least_saving: int = 2**16
    """Fold where the convolution has at least so many more output elements than weights."""

    def exact(self, program: Program) -> bool:
        """Never: the folded weight is rounded once more."""
        return False

    def apply(self, program: Program, edit: Rewriter) -> None:
        """Fold each batch norm whose input only it reads."""
        for node in list(program.nodes):
            conv = _convolution_before(node)
            if conv is None or not _read_parts(node):
                continue
            reason = self._reason_against(node, conv)
            if reason:
                edit.refuse(node, reason)
            else:
                _fold(node, conv, edit)

    def _reason_against(self, norm: fx.Node, conv: fx.Node) -> str:
        if not evaluates(norm):
            return "the batch norm is in training mode: its statistics are those of the batch"
        if len(conv.users) > 1:
            return "something else reads what the convolution gives"
        if [part.args[1] for part in _read_parts(norm)] != [0]:
            return "something reads the statistics that the batch norm gives"
        if conv.args[6]:
            return "the convolution is transposed"
        dtypes = {arg.meta["val"].dtype for arg in (*conv.all_input_nodes, *norm.all_input_nodes)}
        if len(dtypes) > 1 or not dtypes <= _DTYPES:
            return "in half or mixed precision the folded weight would be rounded to half"
        if not same_layout(conv.meta["val"], norm.meta["val"][0]):
            return "the batch norm changes the strides"
        saved = conv.meta["val"].numel() - operand(conv, 1).meta["val"].numel()
        if saved < self.least_saving:
            return f"fewer than {self.least_saving} outputs more than weights: folding costs more"
        return ""


def _convolution_before(node: fx.Node) -> fx.Node | None:
    """The convolution whose result a batch norm normalizes, or None."""
    if node.target not in FORWARD:
        return None
    source = node.args[0]
    if isinstance(source, fx.Node) and source.target is aten.convolution.default:
        return source
    return None


def _read_parts(norm: fx.Node) -> list[fx.Node]:
    """The results of a batch norm (output, mean, rstd) that have readers."""
    return [part for part in norm.users if part.users]


def _fold(norm: fx.Node, conv: fx.Node, edit: Rewriter) -> None:
    source, weight, bias, *geometry = conv.args
    gamma, beta, mean, variance, *_, eps = norm.args[1:]
    (result,) = _read_parts(norm)

    def call(target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        return edit.call(target, args, kwargs, before=norm, like=norm)

    with edit.together():
        scale = call(aten.rsqrt.default, call(aten.add.Tensor, variance, eps))
        if gamma is not None:
            scale = call(aten.mul.Tensor, scale, gamma)
        offset = mean if bias is None else call(aten.sub.Tensor, mean, bias)
        if beta is None:
            shift = call(aten.neg.default, call(aten.mul.Tensor, offset, scale))
        else:
            shift = call(aten.addcmul.default, beta, offset, scale, value=-1)
        rows = call(aten.view.default, scale, [-1] + [1] * (operand(conv, 1).meta["val"].dim() - 1))
        folded = call(aten.mul.Tensor, weight, rows)
        edit.replace(result, call(conv.target, source, folded, shift, *geometry))
        for dead in (*norm.users, norm, conv):
            edit.erase(dead)
