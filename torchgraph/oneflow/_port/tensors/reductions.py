"""Maxima, means, softmax: defaults, dtypes and gradients of ties as in OneFlow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import NotPorted
from .elementwise.arithmetic import is_differentiated, maximum, minimum, nan_where_zero


def _extreme(name: str, input: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    other = kwargs.pop("other", args[0] if args and isinstance(args[0], Tensor) else None)
    if other is not None:
        if other.dtype == torch.bool and not other.dim():
            raise NotPorted(f"{name}(x, bool) takes the bool for dim in OneFlow 0.9.")
        return (maximum if name == "max" else minimum)(input, other)
    if not args and "dim" not in kwargs:
        return getattr(torch, name)(input, *args, **kwargs)
    if args and isinstance(args[0], bool):
        raise NotPorted(f"{name}(x, {args[0]}) takes the bool for dim in OneFlow 0.9.")
    # torch gives the gradient to one of several greatest elements, OneFlow to each its share.
    found = getattr(torch, name)(input.detach(), *args, **kwargs)
    if not (input.requires_grad and torch.is_grad_enabled()):
        return type(found)((found.values, found.indices))
    dim = kwargs.get("dim", args[0] if args else None)
    keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
    shared = getattr(torch, f"a{name}")(input, dim=dim, keepdim=keepdim)
    return type(found)((shared, found.indices))


def max(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """OneFlow: ``max(x)``, ``max(x, dim, keepdim)``, ``max(x, other)``."""
    return _extreme("max", input, args, kwargs)


def min(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """OneFlow: ``min(x)``, ``min(x, dim, keepdim)``, ``min(x, other)``."""
    return _extreme("min", input, args, kwargs)


def _index(name: str, input: Tensor, dim: Any, keepdim: bool, dtype: Any) -> Tensor:
    if dtype is not None and dim is None and dtype != torch.int64:
        raise NotPorted(f"{name}(dtype={dtype}) without a dim is int64 in OneFlow 0.9.")
    found = input.to(torch.uint8) if input.dtype == torch.bool else input
    indices: Tensor = getattr(torch, name)(found, dim, keepdim and dim is not None)
    return indices if dtype is None else indices.to(dtype)


def argmax(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """OneFlow: ``argmax``, of bools, too. Without a dim it keeps none."""
    return _index("argmax", input, dim, keepdim, dtype)


def argmin(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """OneFlow: ``argmin``, of bools, too. Without a dim it keeps none."""
    return _index("argmin", input, dim, keepdim, dtype)


def _itself(by: Any, input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The memory of a tensor without dimensions, where torch takes the dim, too."""
    if dim is not None:
        by(input, dim, keepdim)
    return input[...]


def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """OneFlow: ``sum``. A tensor without dimensions keeps its dtype, and is its own sum."""
    if not input.dim() and dtype in (None, input.dtype):
        return _itself(torch.sum, input, dim, keepdim)
    if dim is None and not keepdim:
        return torch.sum(input, dtype=dtype)
    return torch.sum(input, dim, keepdim, dtype=dtype)


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """OneFlow: ``nansum``. A tensor without dimensions keeps its dtype."""
    if not input.dim() and dtype is None:
        dtype = input.dtype
    if dim is None and not keepdim:
        return torch.nansum(input, dtype=dtype)
    return torch.nansum(input, dim, keepdim, dtype=dtype)


def mean(input: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Tensor:
    """OneFlow: ``mean``. Of nothing it is 0; a tensor without dimensions is its own mean."""
    if not input.dim() and not kwargs and input.is_floating_point():
        return _itself(torch.mean, input, dim, keepdim)
    found = (
        torch.mean(input, **kwargs)
        if dim is None and not keepdim
        else torch.mean(input, dim, keepdim, **kwargs)
    )
    return found if input.numel() else torch.zeros_like(found)


def prod(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """OneFlow: ``prod``. Integers keep their dtype; several dims; of nothing it is 0.

    The gradient of an element that is zero is NaN.
    """
    if not input.dim() and dim not in (None, [], ()):
        return input
    if dtype == torch.bool:
        raise NotPorted("prod(dtype=bool) gives int64 in OneFlow 0.9.", fix="leave dtype out.")
    kept = input.dtype if input.dtype != torch.bool else torch.int64
    found = input.to(kept if dtype is None else dtype)
    if dim is None or dim in ([], ()):
        dims = list(range(input.dim()))
    else:
        dims = [d % input.dim() for d in ([dim] if isinstance(dim, int) else dim)]
    for one in sorted(dims, reverse=True) if input.dim() else []:
        found = torch.prod(found, one, keepdim, dtype=found.dtype)
    if not input.numel():
        return torch.zeros_like(found)
    if is_differentiated(input) and input.dim():
        found = found + nan_where_zero(input).sum(dims, keepdim).to(found.dtype)
    return found


def _no_bool_dim(name: str, dim: Any) -> None:
    if isinstance(dim, bool):
        raise NotPorted(
            f"{name}(x, {dim}) takes the bool for dim in OneFlow 0.9.", fix=f"unbiased={dim}."
        )


def std(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``std``. Of a tensor without dimensions it is 0; the gradient of 0 is NaN."""
    _no_bool_dim("std", dim)
    if not input.dim() and input.is_floating_point():
        return torch.zeros_like(input)
    if is_differentiated(input):
        return torch.sqrt(torch.var(input, dim, *args, **kwargs))
    return torch.std(input, dim, *args, **kwargs)


def var(input: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``var``."""
    _no_bool_dim("var", dim)
    return torch.var(input, dim, *args, **kwargs)


def _default_dim(input: Tensor) -> int:
    return 0 if input.dim() in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """OneFlow: ``softmax``. Without a dim it is 0 for 0, 1 and 3 dimensions, else 1."""
    return torch.softmax(input, _default_dim(input) if dim is None else dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """OneFlow: ``log_softmax``, with the dim of `softmax`."""
    return torch.log_softmax(input, _default_dim(input) if dim is None else dim, dtype)


def _check_wider(name: str, input: Tensor, dtype: torch.dtype | None) -> None:
    if dtype is not None and torch.promote_types(input.dtype, dtype) != dtype:
        raise NotPorted(
            f"{name}(dtype={dtype}) of {input.dtype}: OneFlow 0.9 takes no dtype with less room.",
            fix="x.to(dtype) first.",
        )


def cumsum(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """OneFlow: ``cumsum``."""
    _check_wider("cumsum", input, dtype)
    return torch.cumsum(input, dim, dtype=dtype)


def cumprod(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """OneFlow: ``cumprod``."""
    _check_wider("cumprod", input, dtype)
    return torch.cumprod(input, dim, dtype=dtype)


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """OneFlow: ``quantile``. With a number for ``q`` it is float64."""
    found = input if isinstance(q, Tensor) else input.to(torch.float64)
    return torch.quantile(found, q, dim, keepdim, interpolation=interpolation)
