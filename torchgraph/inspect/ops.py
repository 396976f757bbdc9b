"""Names of ops as people know them: the same for all forms of one computation."""

from __future__ import annotations

from typing import Any

from .._torch import OpOverload, schema_of

# Capture and lowering choose among these by whether running statistics are written, and how.
_BATCH_NORM = {
    "_native_batch_norm_legit": "native_batch_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
    "_native_batch_norm_legit_no_training": "native_batch_norm",
    "_batch_norm_with_update": "cudnn_batch_norm",
    "_batch_norm_with_update_functional": "cudnn_batch_norm",
}


def base_name(target: Any) -> str:
    """``add`` for aten.add.Tensor, aten.add_.Tensor and aten.add.out."""
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", str(target))
    space, _, name = schema_of(target).name.partition("::")
    name = _BATCH_NORM.get(name, name.rstrip("_"))
    return name if space == "aten" else f"{space}.{name}"
