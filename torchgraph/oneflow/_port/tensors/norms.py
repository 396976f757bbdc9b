"""Norms of vectors and matrices: which one is meant, and its gradient at zero."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import NotPorted
from .elementwise.arithmetic import is_differentiated


def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """OneFlow: ``norm``. Of a matrix or of two dims, 1 and inf are norms of matrices.

    Raises:
        NotPorted: a norm that OneFlow 0.9 lacks.
    """
    found = _norm(input, p, dim, keepdim, dtype)
    return _with_gradient(found, input, _order(p, dim), dim, keepdim)


def norm_of(
    self: Tensor, p: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """OneFlow: ``tensor.norm``, as `norm`."""
    found = _norm(self, p, dim, keepdim, dtype)
    return _with_gradient(found, self, _order(p, dim), dim, keepdim)


def linalg_norm(
    input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """OneFlow: ``linalg.norm``."""
    found = torch.linalg.norm(input, ord, dim, keepdim, **kwargs)
    return _with_gradient(found, input, _order(ord, dim), dim, keepdim)


def vector_norm(
    input: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """OneFlow: ``linalg.vector_norm``."""
    found: Tensor = torch.linalg.vector_norm(input, ord, dim, keepdim, **kwargs)
    return _with_gradient(found, input, ord, dim, keepdim)


def matrix_norm(
    input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """OneFlow: ``linalg.matrix_norm``."""
    found: Tensor = torch.linalg.matrix_norm(input, ord, dim, keepdim, **kwargs)
    return _with_gradient(found, input, ord, dim, keepdim)


def _order(p: Any, dim: Any) -> Any:
    return "fro" if p is None and isinstance(dim, (list, tuple)) and len(dim) == 2 else p


def _with_gradient(found: Tensor, input: Tensor, p: Any, dim: Any, keepdim: bool) -> Tensor:
    """A norm with OneFlow's gradient: NaN of a Frobenius norm that is 0, 0 of the order 0."""
    if p not in ("fro", 0) or isinstance(p, bool) or not is_differentiated(input):
        return found
    if p == "fro":
        squares = input.to(found.dtype).square()
        return torch.sqrt(
            squares.sum() if dim is None and not keepdim else squares.sum(dim, keepdim)
        )
    zeros = input * 0
    zeros = zeros.sum() if dim is None and not keepdim else zeros.sum(dim, keepdim)
    return found.detach() + zeros.to(found.dtype)


def _norm(input: Tensor, p: Any, dim: Any, keepdim: bool, dtype: Any) -> Tensor:
    if dtype is not None and not isinstance(dim, int):
        raise NotPorted("norm(dtype=) without one dim: OneFlow 0.9 does not regard it.")
    is_of_all = dim is None and (p in (None, "fro") or (input.dim() < 3 and _is_of_vectors(p)))
    if is_of_all or p in (None, "fro") or isinstance(dim, int) or (dim is None and input.dim() < 2):
        order = 2 if p in (None, "fro") else p
        return cast(Tensor, torch.linalg.vector_norm(input, order, dim, keepdim, dtype=dtype))
    dims = tuple(range(input.dim())) if dim is None else tuple(dim)
    if len(dims) != 2 or p not in (1, -1, math.inf, -math.inf):
        raise NotPorted(f"norm(p={p!r}) over {len(dims)} dims is not in OneFlow 0.9, or another.")
    found = torch.linalg.matrix_norm(input, p, (dims[0], dims[1]), keepdim)
    return cast(Tensor, found)


def _is_of_vectors(p: Any) -> bool:
    return isinstance(p, int) and abs(p) > 1
