"""Sums, products, quotients, powers: OneFlow's dtypes, and its truncating ``//`` and ``%``.

Beside a tensor that has dimensions, one that has none is a number, and is cast to the dtype of the
first: an int32 tensor plus a float of no dimensions is int32. In torch the result is a float.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import NotPorted


def paired(a: Any, b: Any) -> tuple[Any, Any]:
    """Both, where the one without dimensions has the other's dtype."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype:
        if a.dim() and not b.dim():
            return a, b.to(a.dtype)
        if b.dim() and not a.dim():
            return a.to(b.dtype), b
    return a, b


def as_float(x: Any) -> Any:
    """Ints and bools as float32."""
    return x if not isinstance(x, Tensor) or x.is_floating_point() else x.to(torch.float32)


def _paired_floats(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as `paired` has them; beside integers, both as float32."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype:
        wide = a if a.dim() and not b.dim() else b if b.dim() and not a.dim() else None
        if wide is not None:
            dtype = wide.dtype if wide.is_floating_point() else torch.float32
            return a.to(dtype), b.to(dtype)
    return a, b


def _is_bool(x: object) -> bool:
    return isinstance(x, bool) or (isinstance(x, Tensor) and x.dtype == torch.bool)


def refuse_bools(name: str, a: object, b: object) -> None:
    """Refuse where a bool tensor makes OneFlow's result one of bools."""
    wide: list[object] = [x for x in (a, b) if isinstance(x, Tensor) and x.dim()] or [a, b]
    if all(_is_bool(x) for x in wide):
        raise NotPorted(
            f"{name} of bools gives bools in OneFlow 0.9, not numbers.", fix="x.float() first."
        )


def add(input: Any, other: Any = None, *, alpha: Any = 1, inplace: bool = False) -> Tensor:
    """OneFlow: ``add``; of a list of tensors, too. ``bool + True`` is int64."""
    if isinstance(input, (list, tuple)):
        first: Tensor
        first, *rest = input
        for one in rest:
            first = torch.add(first, one)
        return first if other is None else torch.add(first, other)
    input, other = paired(input, other)
    if not isinstance(input, Tensor):
        input, other, alpha = torch.mul(other, alpha) if alpha != 1 else other, input, 1
    if inplace:
        found: Tensor = input.add_(other, alpha=alpha)
        return found
    if isinstance(other, bool) and input.dtype == torch.bool:
        input, other = input.to(torch.int64), int(other)
    return torch.add(input, other, alpha=alpha)


def sub(input: Any, other: Any, *, alpha: Any = 1, inplace: bool = False) -> Tensor:
    """OneFlow: ``sub``; of bools, too."""
    input, other = paired(input, other)
    if isinstance(input, bool) and other.dtype != torch.bool:
        input = int(input)
    if isinstance(input, Tensor):
        if inplace:
            return input.sub_(other, alpha=alpha)
        if input.dtype == torch.bool and not isinstance(other, Tensor):
            input = input.to(torch.int64)
    if isinstance(other, bool):
        other = int(other)
    if _is_bool(input) and _is_bool(other):
        refuse_bools("A difference", input, other)
    if not isinstance(input, Tensor):
        if other.dtype == torch.uint8 and isinstance(input, float):
            raise NotPorted("A float minus a uint8 tensor wraps around in OneFlow 0.9.")
        return torch.rsub(_numbers(other, input), input, alpha=alpha)
    return torch.sub(_numbers(input, other), _numbers(other, input), alpha=alpha)


def _numbers(x: Any, beside: Any) -> Any:
    """A bool tensor as numbers of the other's dtype, since torch subtracts no bools."""
    if not isinstance(x, Tensor) or x.dtype != torch.bool:
        return x
    if isinstance(beside, Tensor):
        return x.to(beside.dtype)
    return x.to(torch.int64 if isinstance(beside, int) else torch.float32)


def mul(input: Any, other: Any, *, inplace: bool = False) -> Tensor:
    """OneFlow: ``mul``."""
    input, other = paired(input, other)
    return input.mul_(other) if inplace else torch.mul(input, other)


def div(input: Any, other: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``div``. Integers give float32.

    Raises:
        NotPorted: of bools, where OneFlow gives bools or integers.
    """
    if _is_bool(input) and not isinstance(other, (float, Tensor)):
        refuse_bools("A quotient", input, True)
    refuse_bools("A quotient", input, other)
    return torch.div(*_paired_floats(input, other), **kwargs)


def floor_divide(input: Any, other: Any, *, inplace: bool = False) -> Tensor:
    """OneFlow: ``floor_divide`` and ``//``. Integers are truncated: ``-3 // 2`` is -1."""
    refuse_bools("A quotient", input, other)
    both = [x for x in (input, other) if isinstance(x, Tensor)]
    is_float = any(x.is_floating_point() for x in both) or isinstance(input, float)
    mode = "floor" if is_float or isinstance(other, float) else "trunc"
    if inplace:
        found: Tensor = input.div_(other, rounding_mode=mode)
        return found
    if not isinstance(input, Tensor):
        input = _made(input, other)
    return torch.div(input, other, rounding_mode=mode)


def _made(number: Any, beside: Tensor) -> Any:
    """A number as a tensor, for functions that take none there."""
    if isinstance(number, Tensor):
        return number
    return torch.tensor(number, device=beside.device)


def fmod(input: Any, other: Any, *, inplace: bool = False) -> Tensor:
    """OneFlow: ``fmod`` and ``%``. The sign is the dividend's: ``-3 % 2`` is -1."""
    refuse_bools("A remainder", input, other)
    input, other = paired(input, other)
    if not isinstance(input, Tensor):
        return torch.fmod(_made(input, other), other)
    return input.fmod_(other) if inplace else torch.fmod(input, other)


def nan_where_zero(x: Tensor) -> Tensor:
    """Zeros, whose gradient is zero, and NaN where x is zero."""
    return x.abs().sqrt() * 0


def is_differentiated(x: Any) -> bool:
    """Whether autograd records what is done with it."""
    return isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()


def pow(input: Any, exponent: Any, *, inplace: bool = False) -> Tensor:
    """OneFlow: ``pow``. Of two integer tensors it is float32; the gradient of 0 ** 0 is NaN."""
    refuse_bools("A power", input, exponent)
    found = _power(input, exponent, inplace)
    if not is_differentiated(input) or inplace:
        return found
    if isinstance(exponent, Tensor):
        is_first = (exponent == 0).expand(found.shape)
        return found + nan_where_zero(torch.where(is_first, input, 1))
    return found + nan_where_zero(input) if exponent == 0 else found


def _power(input: Any, exponent: Any, inplace: bool) -> Tensor:
    if isinstance(input, Tensor) and isinstance(exponent, Tensor):
        a, b = _paired_floats(input, exponent)
        if not a.is_floating_point() and not b.is_floating_point():
            a, b = as_float(a), as_float(b)
        return torch.pow(a, b)
    if not isinstance(input, Tensor) and exponent.dtype == torch.uint8 and input < 0:
        raise NotPorted("A negative number to the power of uint8 wraps around in OneFlow 0.9.")
    if not isinstance(input, (Tensor, float)) and input == 0 and not exponent.is_floating_point():
        raise NotPorted("0 to the power of integers is their lowest one in OneFlow 0.9.")
    return input.pow_(exponent) if inplace else torch.pow(input, exponent)


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """OneFlow: ``maximum``."""
    return torch.maximum(*paired(input, other))


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """OneFlow: ``minimum``."""
    return torch.minimum(*paired(input, other))


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """OneFlow: ``atan2``. A float64 of no dimensions counts; the gradient at (0, 0) is NaN."""
    dtype = torch.promote_types(input.dtype, other.dtype)
    if not dtype.is_floating_point:
        return torch.atan2(input, other)
    a, b = input.to(dtype), other.to(dtype)
    found = torch.atan2(a, b)
    if is_differentiated(input) or is_differentiated(other):
        return found + nan_where_zero(a.abs() + b.abs())
    return found


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """OneFlow: ``logaddexp``, of integers, too.

    Raises:
        NotPorted: of uint8, which wraps around in OneFlow 0.9.
    """
    if torch.uint8 in (input.dtype, other.dtype):
        raise NotPorted("logaddexp of uint8 wraps around in OneFlow 0.9.", fix="x.float() first.")
    a, b = paired(input, other)
    return torch.logaddexp(as_float(a), as_float(b))


def neg(input: Tensor) -> Tensor:
    """OneFlow: ``neg`` and ``-x``. Of integers and bools it is float32."""
    return torch.neg(as_float(input))


def sign(input: Tensor) -> Tensor:
    """OneFlow: ``sign``. Of integers and bools it is float32."""
    return torch.sign(as_float(input))


def square(input: Tensor) -> Tensor:
    """OneFlow: ``square``. Of integers and bools it is float32."""
    return torch.square(as_float(input))


def lgamma(input: Tensor) -> Tensor:
    """OneFlow: ``lgamma``.

    Raises:
        NotPorted: for a gradient, which in OneFlow 0.9 is zero.
    """
    if input.requires_grad and torch.is_grad_enabled():
        raise NotPorted("The gradient of lgamma is zero in OneFlow 0.9.", fix="x.detach() first.")
    return torch.lgamma(input)


def _refuse_mixed(name: str, *tensors: Tensor) -> None:
    if len({one.dtype for one in tensors}) > 1 and not all(one.dim() for one in tensors):
        raise NotPorted(f"{name} of several dtypes, one without dimensions.", fix="x.to(dtype).")


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """OneFlow: ``addcmul``, of one dtype where one has no dimensions."""
    _refuse_mixed("addcmul", input, tensor1, tensor2)
    return torch.addcmul(input, tensor1, tensor2, value=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    """OneFlow: ``addcdiv``, of one dtype where one has no dimensions."""
    _refuse_mixed("addcdiv", input, tensor1, tensor2)
    return torch.addcdiv(input, tensor1, tensor2, value=value)


def add_(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """OneFlow: ``tensor.add_`` and ``+=``. A tensor of another dtype is cast to this one's.

    Raises:
        NotPorted: of floats to uint8, where OneFlow 0.9 saturates what is below zero.
    """
    if isinstance(other, Tensor) and other.dtype != input.dtype:
        if input.dtype == torch.uint8 and other.is_floating_point():
            raise NotPorted("uint8 += floats saturates in OneFlow 0.9.", fix="x.float() first.")
        other, alpha = (other if alpha == 1 else other * alpha).to(input.dtype), 1
    return input.add_(other, alpha=alpha)


def div_(input: Tensor, other: Any) -> Tensor:
    """OneFlow: ``div_``."""
    return input.div_(other)
