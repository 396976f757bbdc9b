"""Shapes: OneFlow's names of dimensions and lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def reversed_dimensions(input: Tensor) -> Tensor:
    """All dimensions in reverse. OneFlow: ``_C.T``."""
    return input.permute(*range(input.dim() - 1, -1, -1))


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    """OneFlow: ``_C.reshape_like``."""
    return x.reshape(like.shape)


def meshgrid(tensors: Sequence[Tensor], indexing: str = "ij") -> Sequence[Tensor]:
    """OneFlow: ``_C.meshgrid``, of a list."""
    found: Sequence[Tensor] = torch.meshgrid(*tensors, indexing=indexing)
    return found


def broadcast_tensors(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """OneFlow: ``_C.broadcast_tensors``, of a list."""
    found: Sequence[Tensor] = torch.broadcast_tensors(*tensors)
    return found


def broadcast_shapes(shapes: Sequence[Sequence[int]]) -> torch.Size:
    """OneFlow: ``_C.broadcast_shapes``, of a list."""
    found: torch.Size = torch.broadcast_shapes(*shapes)
    return found


def slices(
    x: Tensor,
    start: Sequence[int],
    stop: Sequence[int],
    step: Sequence[int],
    enable_view_slice: bool | None = None,
) -> Tensor:
    """One slice of each dimension. OneFlow: ``_C.slice``."""
    found: Tensor = x[tuple(map(slice, start, stop, step))]
    return found


def slice_update(
    ref: Tensor,
    value: Tensor,
    start: Sequence[int],
    stop: Sequence[int],
    step: Sequence[int],
    inplace: bool = False,
) -> Tensor:
    """A tensor with ``value`` in one slice of each dimension. OneFlow: ``_C.slice_update``."""
    result = ref if inplace else ref.clone()
    result[tuple(map(slice, start, stop, step))] = value
    return result


def split_like(x: Tensor, like: Sequence[Tensor], axis: int) -> Sequence[Tensor]:
    """Parts as long as those of other tensors. OneFlow: ``_C.split_like``."""
    found: Sequence[Tensor] = x.split([one.shape[axis] for one in like], axis)
    return found


def unfold_tensor(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """OneFlow: ``_C.unfold_tensor``."""
    return x.unfold(dimension, size, step)


def constant(
    shape: Sequence[int],
    value: float,
    *,
    dtype: torch.dtype,
    device: torch.device | str | None = None,
) -> Tensor:
    """OneFlow: ``_C.constant``."""
    return torch.full(tuple(shape), value, dtype=dtype, device=device)
