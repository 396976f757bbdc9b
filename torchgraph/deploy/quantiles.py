"""Quantiles as functional ops of ATen: those that `torch.quantile` decomposes to write in place."""

from __future__ import annotations

import torch

from .._torch.quantiles import sorted_places

Tensor = torch.Tensor
_AT = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}


def places(rows: Tensor, ranks: Tensor, *options: object) -> Tensor:
    """The form of ``quantile_places``: of equal elements it may find others."""
    return sorted_places(torch.sort(rows).indices, ranks)


def quantile(
    self: Tensor, q: Tensor, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Tensor:
    """The form of ``quantile``."""
    rows = self.reshape(-1) if dim is None else self.movedim(dim, -1)
    ranks = _ranks(rows, q.reshape(-1).double(), ignore_nan)
    values = torch.sort(rows).values
    if interpolation in _AT:
        found = values.gather(-1, _AT[interpolation](ranks).long())
    else:
        below = ranks.floor()
        part = ranks - below if interpolation == "linear" else torch.full_like(ranks, 0.5)
        lower, upper = (values.gather(-1, at.long()) for at in (below, ranks.ceil()))
        found = lower.lerp(upper, part.to(values.dtype))
    shape = [1 if dim is None or i == dim % self.ndim else n for i, n in enumerate(self.shape)]
    found = found.movedim(-1, 0)
    found = found.reshape(-1, *shape) if keepdim else found
    return found if q.ndim else found.squeeze(0)


def _ranks(rows: Tensor, q: Tensor, ignore_nan: bool) -> Tensor:
    missing = rows.isnan()
    if ignore_nan:
        return (q * (missing.logical_not().sum(-1, keepdim=True) - 1)).clamp(min=0)
    last = rows.shape[-1] - 1
    return torch.where(missing.any(-1, keepdim=True), last, q * last)
