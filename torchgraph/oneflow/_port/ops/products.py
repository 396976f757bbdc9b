"""Matrix products with OneFlow's transposes and factor, integer quotients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def matmul(
    input: Tensor,
    other: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """``alpha * input @ other``, of each or both transposed. OneFlow: ``_C.matmul``."""
    left = input.transpose(-1, -2) if transpose_a and input.dim() > 1 else input
    right = other.transpose(-1, -2) if transpose_b and other.dim() > 1 else other
    product = torch.matmul(left, right)
    return product if alpha == 1.0 else product * alpha


def batch_matmul(
    a: Tensor,
    b: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """The same of two batches of matrices. OneFlow: ``_C.batch_matmul``."""
    return matmul(a, b, transpose_a, transpose_b, alpha)


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Without ``dim`` along the first dimension of size 3. OneFlow: ``_C.linalg_cross``."""
    first = list(input.shape).index(3) if dim is None else dim
    found: Tensor = torch.linalg.cross(input, other, dim=first)
    return found


def tensordot(
    a: Tensor,
    b: Tensor,
    dims_a: int | Sequence[int],
    dims_b: Sequence[int] | None = None,
) -> Tensor:
    """OneFlow: ``_C.tensordot``, of a number of dimensions or of two lists."""
    if isinstance(dims_a, int):
        found: Tensor = torch.tensordot(a, b, dims_a)
    else:
        found = torch.tensordot(a, b, (list(dims_a), list(dims_b or ())))
    return found


def fused_products(
    xs: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """``x @ weight.T + bias`` of each. OneFlow: ``_C.grouped_matmul`` and ``_bias``."""
    added = [None] * len(xs) if biases is None else biases
    found = zip(xs, weights, added, strict=True)
    return [torch.nn.functional.linear(x, weight, bias) for x, weight, bias in found]


def trunc_divide(input: Tensor, other: Tensor | float) -> Tensor:
    """A quotient rounded towards zero. OneFlow: ``_C.trunc_divide``."""
    return torch.div(input, other, rounding_mode="trunc")
