"""Ops of inspected programs: their common names, and waiting for asynchronous results."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .._torch import OpOverload, schema_of
from . import effects
from .batch_norms import EVALUATING, NATIVE, VENDOR, names
from .values import tensors_of

_NATIVE = (NATIVE.writing, NATIVE.functional, EVALUATING)
_VENDOR = (VENDOR.writing, VENDOR.functional)
_BATCH_NORM = dict.fromkeys(names(_NATIVE), "native_batch_norm") | dict.fromkeys(
    names(_VENDOR), "cudnn_batch_norm"
)
"""Capture and lowering choose among these by whether running statistics are written, and how."""


UNSET = ("empty", "new_empty")
"""Base names begin so of ops whose results hold whatever was there."""


def base_name(target: object) -> str:
    """``add`` for aten.add.Tensor, aten.add_.Tensor and aten.add.out."""
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", str(target))
    space, _, name = schema_of(target).name.partition("::")
    name = _BATCH_NORM.get(name, name.rstrip("_"))
    return name if space == "aten" else f"{space}.{name}"


def wait_for_collective(node: fx.Node, value: Any) -> Any:
    """``value`` of ``node``, waited for where the node is a collective."""
    if effects.of(node).communicates:
        wait_for_all(value)
    return value


def wait_for_all(value: Any) -> None:
    """Wait for the results of a collective; does nothing for tensors that are complete."""
    for tensor in tensors_of(value):
        torch.ops._c10d_functional.wait_tensor(tensor)
