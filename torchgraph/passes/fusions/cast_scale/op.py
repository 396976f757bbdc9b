"""A cast and the multiplications that follow it, as one op.

The order is that of the separate ops, each rounded to the result's dtype: bitwise the same.
"""

from __future__ import annotations

from typing import Any

import torch

from ....library.definition import define, differentiate
from ....library.dtypes import FLOATING

Tensor = torch.Tensor


def _check(x: Tensor, scale_by: Tensor, dtype: torch.dtype) -> None:
    _require(x.dtype in FLOATING, "x must be a floating-point tensor.")
    _require(dtype in (torch.float32, torch.float64), "dtype is float32 or float64.")
    same = scale_by.dtype == dtype and scale_by.device == x.device
    _require(
        same and scale_by.dim() == 0,
        "scale_by must be a 0-dim tensor of dtype, on the device of x.",
    )


def _require(fits: bool, message: str) -> None:
    if not fits:
        raise RuntimeError(f"torchgraph::cast_scale: {message}")


def reference(x: Tensor, scale_by: Tensor, scale: float = 1.0, *, dtype: torch.dtype) -> Tensor:
    """The op's definition in ATen."""
    _check(x, scale_by, dtype)
    _require(
        x.data_ptr() % x.itemsize == 0,
        "x begins at an address where no element of its dtype may be.",
    )
    return x.to(dtype, copy=True).mul_(scale).mul_(scale_by)


def _shape(x: Tensor, scale_by: Tensor, scale: float = 1.0, *, dtype: torch.dtype) -> Tensor:
    _check(x, scale_by, dtype)
    return torch.empty_like(x, dtype=dtype)


cast_scale = define(
    "cast_scale(Tensor x, Tensor scale_by, float scale=1.0, *, ScalarType dtype) -> Tensor",
    reference,
    _shape,
)
"""``x.to(dtype) * scale * scale_by``, bitwise, in x's strides.

``x``: float32, float64, bfloat16 or float16, of any shape and strides. ``dtype``: float32 or
float64. ``scale_by``: a tensor of no dimensions, of ``dtype`` and on x's device.
"""


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor, keyword_only_inputs: object) -> None:
    x, scale_by, ctx.scale = inputs
    ctx.save_for_backward(x, scale_by)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, scale_by = ctx.saved_tensors
    of_x, of_scale, _ = ctx.needs_input_grad
    return (
        (grad * scale_by * ctx.scale).to(x.dtype) if of_x else None,
        (grad * (x.to(grad.dtype) * ctx.scale)).sum() if of_scale else None,
        None,
    )


differentiate(cast_scale, _differentiate, _save)
