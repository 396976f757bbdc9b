"""``quantile`` and ``quantile_places``: quantiles as torch computes them on the CPU."""

from __future__ import annotations

import torch

from .._torch import quantiles
from .definition import define


def _quantile(
    self: torch.Tensor,
    q: torch.Tensor,
    dim: int | None,
    keepdim: bool,
    interpolation: str,
    ignore_nan: bool,
) -> torch.Tensor:
    compute = torch.nanquantile if ignore_nan else torch.quantile
    return compute(self, q, dim, keepdim, interpolation=interpolation)


def _like_ranks(
    rows: torch.Tensor, ranks: torch.Tensor, q: torch.Tensor, *options: object
) -> torch.Tensor:
    return torch.empty(ranks.shape, dtype=torch.int64, device=ranks.device)


quantile = define(
    "quantile(Tensor self, Tensor q, int? dim, bool keepdim, str interpolation, bool ignore_nan) "
    "-> Tensor",
    _quantile,
    compiled=False,
)
"""``torch.quantile``, or ``torch.nanquantile``, as one op without a derivative."""

quantile_places = define(
    "quantile_places(Tensor rows, Tensor ranks, Tensor q, str interpolation, bool ignore_nan) "
    "-> Tensor",
    quantiles.places,
    _like_ranks,
    compiled=False,
)
"""The indices of the elements of ``ranks`` in each row: of equal ones those that torch takes."""
