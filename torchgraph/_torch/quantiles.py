"""The kernel that `torch.quantile` calls on the CPU for a few ranks of many: no op shows it.

From torch 2.15 on, where sorting all elements is more than is asked for, that kernel writes where
the elements of those ranks lie into an uninitialized tensor, by which they are gathered. Of equal
elements it finds others than a sort does, so the result of the one has no place for the other's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

aten = torch.ops.aten

QUANTILES = (
    *(aten.quantile.default, aten.quantile.scalar, aten.quantile.out, aten.quantile.scalar_out),
    *(aten.nanquantile.default, aten.nanquantile.scalar),
    *(aten.nanquantile.out, aten.nanquantile.scalar_out),
)
"""Composite ops, implemented by calls of others and, on the CPU, by that kernel."""


@functools.cache
def selects() -> bool:
    """True where that kernel is there, so that ops alone do not compute quantiles."""
    rows = torch.zeros(1, 64, dtype=torch.float32, device="cpu")
    _, order = _gathered(rows, rows.new_full((), 0.5), "lower", False)
    return order is None


def places(
    rows: torch.Tensor,
    ranks: torch.Tensor,
    q: torch.Tensor,
    interpolation: str = "linear",
    ignore_nan: bool = False,
) -> torch.Tensor:
    """Where the elements of ``ranks`` lie in each row, as `torch.quantile` finds them for ``q``."""
    index, order = _gathered(rows, q, interpolation, ignore_nan)
    if order is not None:
        return sorted_places(order, ranks)
    return index.as_strided(ranks.shape, (ranks.shape[-1], 1), 0)


def sorted_places(order: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
    """Where the elements of ``ranks`` lie by the indices of a sort."""
    return order.gather(-1, ranks.view(*order.shape[:-1], -1)).view(ranks.shape)


def _gathered(
    rows: torch.Tensor, q: torch.Tensor, interpolation: str, ignore_nan: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The indices by which a quantile gathers, as its derivative has them; those of its sort."""
    compute = torch.nanquantile if ignore_nan else torch.quantile
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _autograd_again(),
        torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is),  # in place of the user's
    ):
        leaf = (rows.clone() if rows.is_inference() else rows.detach()).requires_grad_()
        fixed = q.clone() if q.is_inference() else q.detach()
        node: Any = compute(leaf, fixed, -1, interpolation=interpolation).grad_fn
        index = order = None
        while node is not None and order is None:
            index = getattr(node, "_saved_index", None) if index is None else index
            order = getattr(node, "_saved_indices", None)
            node = node.next_functions[0][0] if node.next_functions else None
        assert index is not None
        return index, order


def _autograd_again() -> torch._C._ForceDispatchKeyGuard:
    """Run ops with autograd's dispatch keys, inside of a block below these."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), _excluded()
    return torch._C._ForceDispatchKeyGuard(included, excluded - _AUTOGRAD_KEYS)


_excluded = torch._C._dispatch_tls_local_exclude_set


def _autograd_keys() -> torch._C.DispatchKeySet:
    others = _excluded()
    with torch._C._AutoDispatchBelowAutograd():
        return _excluded() - others


_AUTOGRAD_KEYS = _autograd_keys()


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
