"""Judgement of one value: equal to the expected one to the bit, or within rounding errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..ir import bits
from .float64 import to_float64

_TIMES = 8
"""How many times eager's own error, and what noise in the last bit does, are no fault yet."""
_LAST_BITS = 4
"""Times the dtype's epsilon, of the largest value: two forms of one formula give that."""
_FLIPS = 1e-5
"""The share of a mask or of indices that may fall on the other side of a comparison."""
_NUMBERS = 1e-12
"""Relative, of a Python number."""


@dataclass(frozen=True)
class ExpectedValue:
    """The value that a captured node should have, computed from the other program's inputs."""

    native: Any
    """In the program's dtype."""
    float64: Any
    """In float64."""
    perturbed: Any
    """In float64, with noise in the last bit of everything that it depends on."""
    eager: Any
    """What eager has."""
    eager_float64: Any
    """In float64, from what eager had at the same places."""


def is_right(value: Any, found: ExpectedValue | Any, *, exact: bool) -> bool:
    """True when ``value`` is the expected one, to the bit where ``exact``.

    Equal bits are right in any case.
    """
    if not isinstance(found, ExpectedValue):
        return bits.same(value, found)
    if bits.same(value, found.native):
        return True
    if exact:
        return False
    own, allowed = errors(value, found)
    return own <= allowed


def alike(left: Any, right: Any, *, exact: bool) -> bool:
    """True when two values are equal: to the bit where ``exact``, else up to rounding."""
    if bits.same(left, right) or exact:
        return bits.same(left, right)
    float64 = to_float64(right)
    if not isinstance(left, torch.Tensor) or not isinstance(float64, torch.Tensor):
        return False
    if not left.is_floating_point() or left.shape != float64.shape or not left.numel():
        return False
    eps = max(torch.finfo(one.dtype).eps for one in (left, right) if one.is_floating_point())
    largest = float(float64.abs().nan_to_num(0, 0, 0).max())
    return error(left, float64, float64) <= _TIMES * eps * largest


def errors(value: Any, found: ExpectedValue) -> tuple[float, float]:
    """The error of ``value`` against float64, and the largest error that is allowed."""
    if not isinstance(value, torch.Tensor) or not isinstance(found.float64, torch.Tensor):
        return _of_numbers(value, found.float64)
    if value.shape != found.float64.shape:
        return float("inf"), 0.0
    if not (value.is_floating_point() or value.is_complex()):
        count = (
            float((value != found.native).sum()) if _alike(value, found.native) else float("inf")
        )
        return count, _FLIPS * value.numel()
    own = error(value, found.float64, found.native)
    eager = error(found.eager, found.eager_float64, found.eager)
    noise = error(found.perturbed, found.float64, found.float64)
    dtypes = [one.dtype for one in (value, found.native) if isinstance(one, torch.Tensor)]
    eps = max(torch.finfo(one).eps for one in dtypes if one.is_floating_point or one.is_complex)
    size = found.float64.abs()
    largest = float(size.masked_fill(~size.isfinite(), 0).max()) if size.numel() else 0.0
    return own, _TIMES * (eager + noise) + _LAST_BITS * eps * largest


def error(value: Any, float64: Any, twin: Any) -> float:
    """The largest difference; infinite where one is finite and neither the other nor ``twin`` is.

    Where ``twin``, what the program's dtype gives, overflows as ``value`` does, nothing is wrong.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(float64, torch.Tensor):
        return _of_numbers(value, float64)[0]
    if value.shape != float64.shape or not value.numel():
        return 0.0 if value.shape == float64.shape else float("inf")
    there = (
        value.to(float64.dtype) if float64.is_floating_point() or float64.is_complex() else value
    )
    if not (float64.is_floating_point() or float64.is_complex()):
        return float((there != float64).sum())
    finite, expected = there.isfinite(), float64.isfinite()
    if isinstance(twin, torch.Tensor) and twin.shape == value.shape:
        expected = expected & twin.isfinite()
    if bool((finite != expected).any()):
        return float("inf")
    return float((there - float64).abs().masked_fill(~(finite & float64.isfinite()), 0).max())


def _alike(left: Any, right: Any) -> bool:
    return isinstance(right, torch.Tensor) and left.shape == right.shape


def _of_numbers(value: Any, float64: Any) -> tuple[float, float]:
    if isinstance(value, (int, float)) and isinstance(float64, (int, float)):
        if value == float64 or (value != value and float64 != float64):
            return 0.0, 0.0
        return abs(float(value) - float(float64)), _NUMBERS * abs(float(float64))
    return (0.0, 0.0) if type(value) is type(float64) else (float("inf"), 0.0)
