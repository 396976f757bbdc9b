"""Ops over lists of tensors, of torch's ``foreach=True`` and ``fused=True``, with moving numbers.

The former are taken apart. The latter become our update ops, which take numbers as tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload

aten = torch.ops.aten

_SINGLE: dict[str, OpOverload] = {
    "add": aten.add.Tensor,
    "addcdiv": aten.addcdiv.default,
    "addcmul": aten.addcmul.default,
    "clamp_max": aten.clamp_max.default,
    "clamp_min": aten.clamp_min.default,
    "div": aten.div.Tensor,
    "lerp": aten.lerp.Scalar,
    "maximum": aten.clamp_min.default,
    "minimum": aten.clamp_max.default,
    "mul": aten.mul.Tensor,
    "pow": aten.pow.Tensor_Scalar,
    "sub": aten.sub.Tensor,
}
_OVERLOADS = ("List", "Scalar", "ScalarList")
_POWERS = "aten::_foreach_pow", "ScalarAndTensor"
"""A number to the power of each tensor: the list comes second."""
_FUSED = {
    "torchgraph::_fused_adam": ("adam", {"decoupled": False}),
    "torchgraph::_fused_adamw": ("adam", {"decoupled": True}),
    "torchgraph::_fused_adagrad": ("adagrad", {}),
    "torchgraph::_fused_sgd": ("sgd", {}),
}


def single(node: fx.Node) -> OpOverload | None:
    """``aten.mul.Tensor`` for ``aten._foreach_mul.Scalar``; None for what is not taken apart."""
    target = node.target
    if not isinstance(target, OpOverload):
        return None
    if (target._schema.name, target._overloadname) == _POWERS:
        return aten.pow.Scalar
    if target._overloadname not in _OVERLOADS:
        return None
    return _SINGLE.get(target._schema.name.removeprefix("aten::_foreach_"))


def items(op: OpOverload, args: Sequence[Any], kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of each call of the single op."""
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    for i in range(count):
        own = [arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args]
        named = dict(kwargs)
        if op in (aten.addcdiv.default, aten.addcmul.default) and len(own) > 3:
            named["value"] = own.pop()
        yield tuple(own), named


def fused(node: fx.Node) -> tuple[str, dict[str, bool]] | None:
    """The rule of our update op for a call of torch's fused kernel, and its flags."""
    target = node.target
    return _FUSED.get(target._schema.name) if isinstance(target, OpOverload) else None
