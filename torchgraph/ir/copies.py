"""Copies of tensors with the strides of the original."""

from __future__ import annotations

from typing import Any

import torch

from .._torch.distributed.held import local
from .aliasing import overlaps_itself


def blank(value: torch.Tensor) -> torch.Tensor:
    """Memory for a copy: same shape, strides, dtype and device."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def is_expanded(value: torch.Tensor) -> bool:
    """True where elements of a dim are the same memory."""
    pairs = zip(value.shape, value.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in pairs)


def fill(into: torch.Tensor, value: torch.Tensor) -> None:
    """Copy the elements; where they overlap, as those of an expanded tensor do, the memory."""
    if value.numel() and is_expanded(value):
        pairs = zip(value.shape, value.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in pairs)
        into, value = into.as_strided((span,), (1,)), value.as_strided((span,), (1,))
    into.copy_(value)


def copy_of(value: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of ``value``, gaps and overlaps included."""
    made = blank(value)
    fill(made, value)
    return made


def copied(value: Any) -> Any:
    """A copy of a tensor with the same strides; of a DTensor, of its local part; others as is."""
    if not isinstance(value, torch.Tensor):
        return value
    tensor = local(value).detach()
    if tensor.is_contiguous() or overlaps_itself(tensor):
        return tensor.clone()
    with torch.no_grad():
        return blank(tensor).copy_(tensor)
