"""Random numbers into tensors: the same distributions as in OneFlow, not the same numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..devices import on_cpu


def bernoulli(
    input: Tensor,
    p: float | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    generator: torch.Generator | None = None,
    inplace: bool = False,
) -> Tensor:
    """OneFlow: ``bernoulli``: float32."""
    if inplace:
        return bernoulli_(input, p, generator=generator)
    odds = input if p is None else torch.full_like(input, p)
    return torch.bernoulli(odds, generator=generator).to(dtype)


def bernoulli_(
    self: Tensor, p: float | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """OneFlow: ``tensor.bernoulli_``. Without ``p`` the elements are the probabilities."""
    return self.bernoulli_(self.clone() if p is None else p, generator=generator)


def uniform_(self: Tensor, a: float = 0, b: float = 1) -> Tensor:
    """OneFlow: ``tensor.uniform_``."""
    with torch.no_grad():
        return self.uniform_(a, b) if self.is_floating_point() else self.random_(int(a), int(b))


def normal_(self: Tensor, mean: float = 0, std: float = 1) -> Tensor:
    """OneFlow: ``tensor.normal_``."""
    return nn.init.normal_(self, mean, std)


def exponential_(
    self: Tensor, lambd: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """OneFlow: ``tensor.exponential_``."""
    with torch.no_grad():
        return self.exponential_(lambd, generator=generator)


def trunc_normal_(
    self: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """OneFlow: ``tensor.trunc_normal_``."""
    return nn.init.trunc_normal_(self, mean, std, a, b)


def generator(device: Any = None) -> torch.Generator:
    """OneFlow: ``Generator``. Without a device it is the CPU's, and not for all devices at once."""
    return torch.Generator("cpu" if device in (None, "auto") else on_cpu.meant(device))
