"""A cast and the multiplications that follow it, as one op.

The order is that of the separate ops, each rounded to the result's dtype: bitwise the same.
"""

from __future__ import annotations

import torch

from .library import define


def _cast_scale(
    x: torch.Tensor, scale_by: torch.Tensor, scale: float = 1.0, *, dtype: torch.dtype
) -> torch.Tensor:
    result = x.to(dtype, copy=True)
    if scale != 1.0:
        result.mul_(scale)
    return result.mul_(scale_by)


def _cast_scale_shape(
    x: torch.Tensor, scale_by: torch.Tensor, scale: float = 1.0, *, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


cast_scale = define(
    "cast_scale(Tensor x, Tensor scale_by, float scale=1.0, *, ScalarType dtype) -> Tensor",
    _cast_scale,
    _cast_scale_shape,
)
"""``x.to(dtype) * scale * scale_by`` for a 0-dim ``scale_by`` of that dtype, in x's strides."""
