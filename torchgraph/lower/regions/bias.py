"""``addmm`` with a bias, as a product and a sum: the sum costs nothing in the kernel that reads it.

ATen's own copies the bias into its result first, which then is read again: on a CPU 4 % of a small
transformer's step.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import Argument

from ...ir.nodes import operand

aten = torch.ops.aten


def adds_bias(node: fx.Node) -> bool:
    """True for an ``addmm`` that `rewritten` takes: of wide floats, on a CPU, not scaled."""
    if node.target is not aten.addmm.default or node.kwargs:
        return False
    bias, left = (operand(node, i).meta["val"] for i in (0, 1))
    wide = left.dtype in (torch.float32, torch.float64)
    return wide and bias.dim() == 1 and left.device.type == "cpu"


def rewritten(graph: fx.Graph, args: tuple[Argument, ...]) -> fx.Node:
    """The product and the sum. A product of less wide floats would be rounded first."""
    bias, left, right = args
    product = graph.call_function(aten.mm.default, (left, right))
    # Inductor would make addmm again of a sum of two dimensions.
    product = graph.call_function(aten.unsqueeze.default, (product, 0))
    summed = graph.call_function(aten.add.Tensor, (product, bias))
    return graph.call_function(aten.squeeze.dim, (summed, 0))
