"""Names of ops as people know them: the same for all forms of one computation."""

from __future__ import annotations

from .._torch import OpOverload, schema_of
from ..ir.batch_norms import EVALUATING, NATIVE, VENDOR, names

_NATIVE = (NATIVE.writing, NATIVE.functional, EVALUATING)
_VENDOR = (VENDOR.writing, VENDOR.functional)
_BATCH_NORM = dict.fromkeys(names(_NATIVE), "native_batch_norm") | dict.fromkeys(
    names(_VENDOR), "cudnn_batch_norm"
)
"""Capture and lowering choose among these by whether running statistics are written, and how."""


def base_name(target: object) -> str:
    """``add`` for aten.add.Tensor, aten.add_.Tensor and aten.add.out."""
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", str(target))
    space, _, name = schema_of(target).name.partition("::")
    name = _BATCH_NORM.get(name, name.rstrip("_"))
    return name if space == "aten" else f"{space}.{name}"
