"""Packing of tensors into contiguous memory for point-to-point communication."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..ir.program import TensorMeta


def packed(value: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """The elements of ``value``, each once, in the order in which its layout has them in memory."""
    for dim, (size, stride) in enumerate(zip(meta.shape, meta.stride, strict=True)):
        if size > 1 and stride == 0:
            value = value.narrow(dim, 0, 1)
    return value.permute(_order(meta)).resolve_conj().resolve_neg().contiguous().view(-1)


def blank(meta: TensorMeta) -> torch.Tensor:
    """Uninitialized memory for a packed value."""
    return torch.empty(math.prod(_sizes(meta)), dtype=meta.dtype, device=meta.device)


def unpacked(memory: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """The value that `packed` has written to ``memory``, in its layout."""
    sizes, order = _sizes(meta), _order(meta)
    dense = memory.view([sizes[dim] for dim in order])
    value = dense.permute([order.index(dim) for dim in range(len(sizes))])
    if tuple(value.stride()) == meta.stride and tuple(sizes) == meta.shape:
        return value
    pairs = zip(meta.shape, meta.stride, strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if memory.numel() else 0
    room = torch.empty(span, dtype=meta.dtype, device=meta.device)
    if span:
        room.as_strided(sizes, meta.stride).copy_(value)
    return room.as_strided(meta.shape, meta.stride)


def as_bytes(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of packed values, joined."""
    return torch.cat([value.view(torch.uint8) for value in values])


def of_bytes(memory: torch.Tensor, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
    """The values that `as_bytes` has joined, each in memory of its own."""
    found, start = [], 0
    for meta in metas:
        own = blank(meta)
        raw = own.view(torch.uint8)
        raw.copy_(memory[start : start + raw.numel()])
        found.append(unpacked(own, meta))
        start += raw.numel()
    return found


def bytes_of(meta: TensorMeta) -> int:
    """The size of a packed value in bytes."""
    return math.prod(_sizes(meta)) * meta.dtype.itemsize


def _sizes(meta: TensorMeta) -> list[int]:
    pairs = zip(meta.shape, meta.stride, strict=True)
    return [1 if size > 1 and stride == 0 else size for size, stride in pairs]


def _order(meta: TensorMeta) -> list[int]:
    """The dimensions by descending stride."""
    return sorted(range(len(meta.shape)), key=lambda dim: -meta.stride[dim])
