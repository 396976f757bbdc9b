"""Draws of nothing but 0 and 1, kept for the backward as bools."""

from __future__ import annotations

import torch
from torch import fx

from ..._torch import OpOverload, schema_of
from ...ir.rewriter import Rewriter

aten = torch.ops.aten

_COINS = frozenset({"aten::bernoulli", "torchgraph::bernoulli"})


def is_coin(node: fx.Node) -> bool:
    """True for such a draw in a dtype that is larger than a bool: it can be kept as one."""
    target, value = node.target, node.meta.get("val")
    return (
        isinstance(target, OpOverload)
        and schema_of(target).name in _COINS
        and isinstance(value, torch.Tensor)
        and value.dtype.itemsize > 1
    )


def pack(draw: fx.Node, edit: Rewriter) -> fx.Node:
    """The draw as bools, made right after it."""
    kwargs = {"dtype": torch.bool}
    return edit.call(aten._to_copy.default, (draw,), kwargs, before=draw.next, like=draw)


def unpack(
    packed: fx.Node, draw: fx.Node, edit: Rewriter, *, before: fx.Node, region: int
) -> fx.Node:
    """The draw again, in the backward, from what `pack` gave: the same values."""
    kwargs = {"dtype": draw.meta["val"].dtype}
    back = edit.call(aten._to_copy.default, (packed,), kwargs, before=before, like=draw)
    return edit.in_backward(back, region)
