"""The in-place form of an op: which there is, and where its bits could be others."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .. import effects
from .._torch import OpOverload

# Not tagged pointwise, yet each element of the result depends on the same element of self alone.
_ELEMENTWISE = frozenset(
    {"aten::copy", "aten::fill", "aten::zero", "aten::masked_fill", "aten::lerp", "aten::index_put"}
)
# Each element of the result depends on the same element of self, and on much of the others.
ACCUMULATING = frozenset({"aten::addmm", "aten::baddbmm"})
# In half precision an op and its in-place form may round a number at different points.
_HALF = frozenset({torch.float16, torch.bfloat16})


def in_place_form(op: Any) -> OpOverload | None:
    """``aten.add_.Tensor`` for ``aten.add.Tensor``; None where in place could differ in a bit."""
    if not isinstance(op, OpOverload) or op._schema.is_mutable:
        return None
    name = op._schema.name
    elementwise = torch.Tag.pointwise in op.tags or name in _ELEMENTWISE | ACCUMULATING
    if not (elementwise or name.startswith(("aten::_foreach_", "torchgraph::"))):
        return None
    if torch.Tag.nondeterministic_seeded in op.tags:
        return None
    return effects.other_form(op)


def minds_form(node: fx.Node) -> bool:
    """True for an op of half precision that takes a number: its last bits depend on its form.

    The two forms of an op of our own run the same kernel.
    """
    if getattr(node.target, "namespace", "") == "torchgraph":
        return False
    value = node.meta["val"]
    items = value if isinstance(value, (tuple, list)) else (value,)
    half = any(isinstance(item, torch.Tensor) and item.dtype in _HALF for item in items)
    return half and any(map(_holds_number, (*node.args, *node.kwargs.values())))


def _holds_number(argument: Any) -> bool:
    if isinstance(argument, fx.Node):
        return not isinstance(argument.meta.get("val"), (torch.Tensor, tuple, list))
    if isinstance(argument, (tuple, list)):
        return any(map(_holds_number, argument))
    return isinstance(argument, (int, float)) and not isinstance(argument, bool)
