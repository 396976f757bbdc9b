"""Gradients of cross-entropies without the matrix of zeros that lies between two ops of ATen's."""

from __future__ import annotations

import torch
from torch import fx

from ... import library
from ...ir.program import Program
from ...ir.values import is_contiguous

aten = torch.ops.aten


def join_losses(program: Program) -> int:
    """Compute ``nll_loss_backward`` and its only reader's result together; how many times."""
    found = [node for node in program.nodes if _fits(node)]
    for node in found:
        loss, scores = node.args[:2]
        assert isinstance(loss, fx.Node)
        gradient, _, *others = loss.args
        node.target = library.nll_log_softmax_backward
        node.args = (scores, *others, gradient)
        program.gm.graph.erase_node(loss)
    return len(found)


def _fits(node: fx.Node) -> bool:
    if node.target is not aten._log_softmax_backward_data.default:
        return False
    loss, scores, dim, dtype = node.args
    if not isinstance(loss, fx.Node) or loss.target is not aten.nll_loss_backward.default:
        return False
    value = node.meta["val"]
    alone = set(loss.users) == {node} and loss.args[1] is scores
    plain = value.ndim == 2 and is_contiguous(value) and dtype == value.dtype
    return alone and plain and dim in (1, -1) and value.device.type == "cpu"
