"""torch's ops over lists of tensors, and the op on one tensor that each stands for.

On the CPU torch itself calls the single ops, one after the other (ForeachOpsKernels.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .._torch import OpOverload, overload_name, schema_of

aten = torch.ops.aten

_PREFIX = "aten::_foreach_"
_RENAMED = {"maximum": "clamp_min", "minimum": "clamp_max"}
_OF_TENSORS = {
    "add": "Tensor",
    "sub": "Tensor",
    "mul": "Tensor",
    "div": "Tensor",
    "lerp": "Tensor",
    "pow": "Tensor_Tensor",
    "clamp_min": "Tensor",
    "clamp_max": "Tensor",
    "copy": "default",
}
"""The overload that takes another tensor."""
_OF_NUMBERS = _OF_TENSORS | {
    "lerp": "Scalar",
    "pow": "Tensor_Scalar",
    "clamp_min": "default",
    "clamp_max": "default",
    "addcmul": "default",
    "addcdiv": "default",
}
"""The overload that takes a number."""
_OVERLOADS = {
    "List": _OF_TENSORS,
    "Tensor": _OF_TENSORS,
    "Scalar": _OF_NUMBERS,
    "ScalarList": _OF_NUMBERS,
    "ScalarAndTensor": {"pow": "Scalar"},
}
_WRITTEN = {"Tensor_Tensor": "Tensor", "Tensor_Scalar": "Scalar"}
"""Overloads that have another name in place."""


def single(op: object) -> OpOverload | None:
    """``aten.mul.Tensor`` for ``aten._foreach_mul.Scalar``; None where no one op is known."""
    if not isinstance(op, OpOverload) or not schema_of(op).name.startswith(_PREFIX):
        return None
    name = schema_of(op).name.removeprefix(_PREFIX)
    plain = name.removesuffix("_")
    plain = _RENAMED.get(plain, plain)
    overload: str | None = "default"
    if overload_name(op) in _OVERLOADS:
        overload = _OVERLOADS[overload_name(op)].get(plain)
    elif plain in _OF_TENSORS:
        overload = _OF_TENSORS[plain]
    in_place = name.endswith("_")
    packet = getattr(aten, f"{plain}_" if in_place else plain, None)
    if overload is None or packet is None:
        return None
    found = getattr(packet, _WRITTEN.get(overload, overload) if in_place else overload, None)
    return found if isinstance(found, OpOverload) else None


def items(op: OpOverload, args: Sequence[object], kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of each call of the single op."""
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    for i in range(count):
        own = [arg[i] if isinstance(arg, (list, tuple)) else arg for arg in args]
        named = dict(kwargs)
        if "addc" in schema_of(op).name and len(own) > 3:
            named["value"] = own.pop()
        yield tuple(own), named
