"""Activations that torch lacks, or has as functions only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """OneFlow: ``gelu``, where ``approximate`` may be positional."""
    return functional.gelu(input, approximate=approximate)


def silu(input: Tensor) -> Tensor:
    """OneFlow: ``silu``."""
    return functional.silu(input)


def mish(input: Tensor) -> Tensor:
    """OneFlow: ``mish``."""
    return functional.mish(input)


def selu(input: Tensor) -> Tensor:
    """OneFlow: ``selu``."""
    return torch.selu(input)


def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """OneFlow: ``softplus``."""
    return functional.softplus(input, beta, threshold)


def softsign(input: Tensor) -> Tensor:
    """OneFlow: ``softsign``."""
    return functional.softsign(input)


def softshrink(input: Tensor, alpha: float = 0.5, *, inplace: bool = False) -> Tensor:
    """OneFlow: ``softshrink``, whose bound is called ``alpha``."""
    found = functional.softshrink(input, alpha)
    return input.copy_(found) if inplace else found


def quick_gelu(input: Tensor) -> Tensor:
    """OneFlow: ``quick_gelu``: x times the sigmoid of 1.702 x."""
    return input * torch.sigmoid(1.702 * input)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """OneFlow: ``relu``."""
    return torch.relu_(input) if inplace else torch.relu(input)
