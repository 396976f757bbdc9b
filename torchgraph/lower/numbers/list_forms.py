"""Ops over lists of tensors, of torch's ``foreach=True`` and ``fused=True``, with moving numbers.

The former are taken apart. The latter become our update ops, which take numbers as tensors.
"""

from __future__ import annotations

from torch import fx

from ..._torch import OpOverload, schema_of
from ...library import foreach
from ...library.foreach import items

__all__ = ["fused", "items", "single"]

_FUSED = {
    "torchgraph::_fused_adam": ("adam", {"decoupled": False}),
    "torchgraph::_fused_adamw": ("adam", {"decoupled": True}),
    "torchgraph::_fused_adagrad": ("adagrad", {}),
    "torchgraph::_fused_sgd": ("sgd", {}),
}


def single(node: fx.Node) -> OpOverload | None:
    """``aten.mul.Tensor`` for a call of ``aten._foreach_mul.Scalar``; None for other ops."""
    return foreach.single(node.target)


def fused(node: fx.Node) -> tuple[str, dict[str, bool]] | None:
    """The rule of our update op for a call of torch's fused kernel, and its flags."""
    target = node.target
    return _FUSED.get(schema_of(target).name) if isinstance(target, OpOverload) else None
