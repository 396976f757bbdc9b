"""``clamp`` and its kin: a tensor of integers stays one, and the bounds are truncated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _bound(input: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.item()
    return value if value is None or input.is_floating_point() else int(value)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """OneFlow: ``clamp`` and ``clip``; the gradient at a bound is 1."""
    low, high = _bound(input, min), _bound(input, max)
    if input.requires_grad and low is not None and high is not None:
        return torch.clamp_max(torch.clamp_min(input, low), high)  # clamp's is 0 from torch 2.15 on
    return torch.clamp(input, low, high)


def clamp_(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """OneFlow: ``clamp_`` and ``clip_``; the gradient at a bound is 1."""
    low, high = _bound(input, min), _bound(input, max)
    if input.requires_grad and low is not None and high is not None:
        return torch.clamp_max_(torch.clamp_min_(input, low), high)
    return torch.clamp_(input, low, high)


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """OneFlow: ``clamp_min``."""
    return torch.clamp_min(input, _bound(input, min))


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """OneFlow: ``clamp_max``."""
    return torch.clamp_max(input, _bound(input, max))


def clamp_min_(input: Tensor, min: Any) -> Tensor:
    """OneFlow: ``clamp_min_``."""
    return torch.clamp_min_(input, _bound(input, min))


def clamp_max_(input: Tensor, min: Any) -> Tensor:
    """OneFlow: ``clamp_max_``, whose argument is called ``min``."""
    return torch.clamp_max_(input, _bound(input, min))
