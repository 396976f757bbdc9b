"""Logic and comparison: ``&`` is logical in OneFlow, and tolerances come in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import NotPorted
from .arithmetic import paired


def _pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(a, Tensor):
        return torch.tensor(a, device=b.device), b
    if not isinstance(b, Tensor):
        return a, torch.tensor(b, device=a.device)
    return paired(a, b)


def logical_and(input: Any, other: Any) -> Tensor:
    """OneFlow: ``logical_and`` and ``&``, of any dtype, with numbers, too. Bool."""
    return torch.logical_and(*_pair(input, other))


def logical_or(input: Any, other: Any) -> Tensor:
    """OneFlow: ``logical_or`` and ``|``, of any dtype, with numbers, too. Bool."""
    return torch.logical_or(*_pair(input, other))


def logical_xor(input: Any, other: Any) -> Tensor:
    """OneFlow: ``logical_xor`` and ``^``, of any dtype, with numbers, too. Bool."""
    return torch.logical_xor(*_pair(input, other))


def _compared(by: Callable[..., Tensor], mirrored: Callable[..., Tensor]) -> Callable[..., Any]:
    def compare(input: Any, other: Any) -> Any:
        if input is None or other is None:
            return by is torch.ne
        a, b = paired(input, other)
        return by(a, b) if isinstance(a, Tensor) else mirrored(b, a)

    compare.__doc__ = f"OneFlow: ``{by.__name__}``, whose first argument may be a number."
    return compare


eq = _compared(torch.eq, torch.eq)
ne = _compared(torch.ne, torch.ne)
lt = _compared(torch.lt, torch.gt)
le = _compared(torch.le, torch.ge)
gt = _compared(torch.gt, torch.lt)
ge = _compared(torch.ge, torch.le)


def _whether(by: Callable[..., Tensor], input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    if not input.dim() and dim is not None:
        return input
    dims = range(input.dim()) if dim is None or dim in ([], ()) else dim
    found = input.to(torch.bool)
    if isinstance(dims, int):
        return by(found, dims, keepdim)
    return by(found, tuple(dims), keepdim) if input.dim() else by(found)


def all(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """OneFlow: ``all``. Bool for uint8, too; no dims are all dims."""
    return _whether(torch.all, input, dim, keepdim)


def any(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """OneFlow: ``any``. Bool for uint8, too; no dims are all dims."""
    return _whether(torch.any, input, dim, keepdim)


def _refuse_bools(a: Tensor, b: Tensor) -> None:
    if a.dtype == torch.bool and b.dtype == torch.bool:
        raise NotPorted("isclose of bools is always True in OneFlow 0.9.", fix="torch.eq(a, b).")


def isclose(
    input: Tensor, other: Tensor, atol: float = 1e-8, rtol: float = 1e-5, equal_nan: bool = False
) -> Tensor:
    """OneFlow: ``isclose``, where ``atol`` comes first."""
    _refuse_bools(input, other)
    return torch.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(
    input: Tensor, other: Tensor, atol: float = 1e-8, rtol: float = 1e-5, equal_nan: bool = False
) -> bool:
    """OneFlow: ``allclose``, where ``atol`` comes first."""
    _refuse_bools(input, other)
    return torch.allclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


def contains(self: Tensor, element: Any) -> bool:
    """OneFlow: ``element in tensor``."""
    return bool(torch.any(eq(self, element)))
