"""``clamp`` and its kin: a tensor of integers stays one, and the bounds are truncated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _bound(input: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.item()
    return value if value is None or input.is_floating_point() else int(value)


def _limited(input: Tensor, low: Any, high: Any) -> Tensor:
    """A clamped tensor whose gradient at a bound is 1: torch's is 0 from 2.15 on."""
    if not input.requires_grad or low is high is None:
        return torch.clamp(input, low, high)
    if low is not None:
        input = torch.where(input < low, low, input)
    return input if high is None else torch.where(input > high, high, input)


def _limited_(input: Tensor, low: Any, high: Any) -> Tensor:
    if not input.requires_grad or low is high is None:
        return torch.clamp_(input, low, high)
    return input.copy_(_limited(input, low, high))


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """OneFlow: ``clamp`` and ``clip``."""
    return _limited(input, _bound(input, min), _bound(input, max))


def clamp_(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """OneFlow: ``clamp_`` and ``clip_``."""
    return _limited_(input, _bound(input, min), _bound(input, max))


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """OneFlow: ``clamp_min``."""
    return _limited(input, _bound(input, min), None)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """OneFlow: ``clamp_max``."""
    return _limited(input, None, _bound(input, max))


def clamp_min_(input: Tensor, min: Any) -> Tensor:
    """OneFlow: ``clamp_min_``."""
    return _limited_(input, _bound(input, min), None)


def clamp_max_(input: Tensor, min: Any) -> Tensor:
    """OneFlow: ``clamp_max_``, whose argument is called ``min``."""
    return _limited_(input, None, _bound(input, min))
