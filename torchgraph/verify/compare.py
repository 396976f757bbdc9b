"""Comparison of two values: equal to the bit, or apart by no more than rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..ir import bits
from .float64 import to_float64

_TIGHT = 4
"""Times the dtype's epsilon, of the largest value: two forms of one formula give that."""
_FLIPS = 1e-5
"""The share of a mask or of indices that may fall on the other side of a comparison."""
_TIMES = 8
"""How many times eager's own error, and what noise in the last bit does, are no fault yet."""
_NUMBERS = 1e-12
"""Relative, of a Python number."""
_PART = 1 << 17
"""Elements of a large value that are compared at a time."""


@dataclass(frozen=True)
class Gap:
    """The difference of two values."""

    size: float = 0.0
    """The largest difference; for masks and integers the number of those that differ."""
    broken: int = 0
    """The number of elements that are finite on one side only, or infinite with opposite signs."""

    def within(self, other: Gap) -> bool:
        """True when nothing of it is larger."""
        return self.size <= other.size and self.broken <= other.broken

    def __or__(self, other: Gap) -> Gap:
        return Gap(max(self.size, other.size), max(self.broken, other.broken))


APART = Gap(float("inf"))
"""The difference of values of different kinds."""


def gap(left: object, right: object, twin: object = None) -> Gap:
    """The difference of two values; infinite when they are of different kinds.

    Args:
        twin: what a coarser dtype gives for ``right``, and so may overflow where that does not.
    """
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if (left.shape, left.dtype) != (right.shape, right.dtype):
            return APART
        return _between(left, right, twin) if left.numel() else Gap()
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        equal = left == right or (left != left and right != right)
        return Gap() if equal else Gap(abs(float(left) - float(right)))
    return Gap() if left is None and right is None else APART


def _between(left: torch.Tensor, right: torch.Tensor, twin: object) -> Gap:
    if not is_inexact(left):
        return Gap(float((left != right).sum()))
    if left.element_size() < 4:
        left, right = left.float(), right.float()
    sizes = [_most(one - other) for one, other in _parts(left, right)]
    most = math.nan if any(map(math.isnan, sizes)) else max(sizes)
    if math.isfinite(most) and not isinstance(twin, torch.Tensor):
        return Gap(most)  # then all are finite on both sides
    distance = (left - right).abs()
    ends, expected = left.isfinite(), right.isfinite()
    both = ends & expected
    if isinstance(twin, torch.Tensor) and twin.shape == left.shape:
        expected = expected & twin.isfinite()
    opposite = ~ends & ~right.isfinite() & (distance == math.inf)
    distance.masked_fill_(~both, 0)
    return Gap(float(distance.max()), int(((ends != expected) | opposite).sum()))


def is_inexact(value: torch.Tensor) -> bool:
    """True for floats and complex numbers."""
    return value.is_floating_point() or value.is_complex()


def largest(value: torch.Tensor) -> float:
    """The largest finite magnitude."""
    if not value.numel():
        return 0.0
    value = value if value.element_size() > 1 else value.float()
    most = _most(value)
    if math.isfinite(most):
        return most
    return _most(value.masked_fill(~value.isfinite(), 0))


def _most(value: torch.Tensor) -> float:
    """The largest magnitude; NaN where one is."""
    if value.is_complex():
        return float(value.abs().max())
    ends = torch.stack(value.aminmax()).tolist()  # one sweep, and no memory
    return math.nan if math.isnan(ends[0]) else float(max(abs(end) for end in ends))


def _parts(left: torch.Tensor, right: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Two values, in parts whose difference stays in a CPU's cache."""
    dense = left.is_contiguous() and right.is_contiguous()
    if left.device.type != "cpu" or not dense or left.numel() <= _PART:
        return [(left, right)]
    return zip(left.view(-1).split(_PART), right.view(-1).split(_PART), strict=True)


def tight(value: object, *, flips: bool) -> Gap:
    """The difference between two forms of one formula that gives ``value``.

    Args:
        flips: comparisons may come out otherwise, too.
    """
    if isinstance(value, torch.Tensor) and value.numel():
        if is_inexact(value):
            return Gap(_TIGHT * torch.finfo(value.dtype).eps * largest(value))
        return Gap(_FLIPS * value.numel() if flips else 0.0)
    if isinstance(value, float):
        return Gap(_TIGHT * torch.finfo(torch.float64).eps * abs(value))
    return Gap()


# --- beside float64 -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedValue:
    """The value that a captured node should have, computed from the other program's inputs."""

    native: Any
    """In the program's dtype."""
    float64: Any = None
    """In float64; None where values are compared to the bit."""
    perturbed: Any = None
    """In float64, with noise in the last bit of everything that it depends on."""
    eager: Any = None
    """Eager's value."""
    eager_float64: Any = None
    """In float64, from what eager had at the same places."""


def is_right(value: Any, found: ExpectedValue, *, exact: bool) -> bool:
    """True when ``value`` is the expected one, to the bit where ``exact``.

    Equal bits are right in any case.
    """
    if exact or bits.same(value, found.native):
        return bits.same(value, found.native)
    own, allowed = errors(value, found)
    return own <= allowed


def alike(left: Any, right: Any, *, exact: bool) -> bool:
    """True when two values are equal: to the bit where ``exact``, else up to rounding."""
    if bits.same(left, right) or exact:
        return bits.same(left, right)
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if not left.is_floating_point() or left.shape != right.shape or not left.numel():
        return False
    float64 = to_float64(right)
    return error(left, float64, float64) <= _TIMES * _eps(left, right) * largest(float64)


def errors(value: Any, found: ExpectedValue) -> tuple[float, float]:
    """The error of ``value`` against float64, and the largest error that is allowed."""
    if not isinstance(value, torch.Tensor) or not isinstance(found.float64, torch.Tensor):
        plain = isinstance(value, (int, float)) and isinstance(found.float64, (int, float))
        size = error(value, found.float64, found.float64)
        return size, _NUMBERS * abs(float(found.float64)) if plain else 0.0
    if value.shape != found.float64.shape:
        return float("inf"), 0.0
    if not is_inexact(value):
        same_kind = isinstance(found.native, torch.Tensor) and found.native.shape == value.shape
        count = float((value != found.native).sum()) if same_kind else float("inf")
        return count, _FLIPS * value.numel()
    own = error(value, found.float64, found.native)
    eager = error(found.eager, found.eager_float64, found.eager)
    noise = error(found.perturbed, found.float64, found.float64)
    rounding = _TIGHT * _eps(value, found.native) * largest(found.float64)
    return own, _TIMES * (eager + noise) + rounding


def error(value: Any, float64: Any, twin: Any) -> float:
    """The largest difference; infinite where one is finite and neither the other nor ``twin`` is.

    Where ``twin``, what the program's dtype gives, overflows as ``value`` does, nothing is wrong.
    """
    if isinstance(value, torch.Tensor) and isinstance(float64, torch.Tensor):
        found = gap(value.to(float64.dtype) if is_inexact(float64) else value, float64, twin)
    elif type(value) is type(float64) and not isinstance(value, (int, float)):
        found = Gap()
    else:
        found = gap(value, float64)
    return float("inf") if found.broken else found.size


def _eps(*values: Any) -> float:
    """The coarsest epsilon of the tensors among some values."""
    dtypes = [one.dtype for one in values if isinstance(one, torch.Tensor) and is_inexact(one)]
    return max(torch.finfo(dtype).eps for dtype in dtypes)
