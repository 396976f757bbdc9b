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
    """OneFlow: ``clamp`` and ``clip``."""
    return torch.clamp(input, _bound(input, min), _bound(input, max))


def clamp_(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """OneFlow: ``clamp_`` and ``clip_``."""
    return torch.clamp_(input, _bound(input, min), _bound(input, max))


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
