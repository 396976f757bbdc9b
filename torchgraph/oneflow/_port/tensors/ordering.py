"""Sorting, ranking, counting: stable, with int32 where OneFlow has int32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import NotPorted


def sort(input: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """OneFlow: ``sort``: stable, and the indices are int32."""
    values, indices = torch.sort(input, dim=dim, descending=descending, stable=True)
    return torch.return_types.sort((values, indices.to(torch.int32)))


def argsort(input: Tensor, dim: int = -1, descending: bool | None = False) -> Tensor:
    """OneFlow: ``argsort``: stable, int32."""
    return torch.argsort(input, dim=dim, descending=bool(descending), stable=True).to(torch.int32)


def topk(
    input: Tensor, k: int, dim: int | None = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """OneFlow: ``topk``: of equal elements the first ones. ``sorted=False`` is sorted, too.

    Raises:
        NotPorted: the least of uint8, of which OneFlow 0.9 takes 0 for the greatest.
    """
    if input.dtype == torch.uint8 and not largest:
        raise NotPorted("topk(largest=False) of uint8 is wrong in OneFlow 0.9.", fix="x.int().")
    where = -1 if dim is None else dim
    indices = torch.sort(input.detach(), dim=where, descending=largest, stable=True)[1]
    indices = indices.narrow(where, 0, k) if input.dim() else indices
    values = torch.gather(input, where, indices)
    return torch.return_types.topk((values, indices))


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dtype: torch.dtype = torch.int32,
) -> Any:
    """OneFlow: ``unique``. Indices are int32; unsorted, the order is of first appearance."""
    values, inverse, counts = torch.unique(input, return_inverse=True, return_counts=True)
    if not sorted:
        flat = inverse.reshape(-1)
        first = torch.full_like(counts, flat.numel())
        first.scatter_reduce_(0, flat, torch.arange(flat.numel(), device=flat.device), "amin")
        order = torch.argsort(first)
        values, counts = values[order], counts[order]
        inverse = torch.argsort(order)[inverse]
    wanted = [values]
    wanted += [inverse.to(dtype)] if return_inverse else []
    wanted += [counts.to(dtype)] if return_counts else []
    return tuple(wanted) if len(wanted) > 1 else values


def unique_of(
    self: Tensor,
    sorted: bool = True,
    return_inverse: bool | None = None,
    return_counts: bool | None = None,
    dtype: torch.dtype = torch.int32,
) -> Any:
    """OneFlow: ``tensor.unique``: a tuple, of one, too, where one of the two flags is given."""
    found = unique(self, sorted, bool(return_inverse), bool(return_counts), dtype)
    is_tuple = return_inverse is not None or return_counts is not None
    return (found,) if is_tuple and isinstance(found, Tensor) else found


def nonzero(input: Tensor, as_tuple: bool = False) -> Any:
    """OneFlow: ``nonzero``, where ``as_tuple`` may be positional."""
    return torch.nonzero(input, as_tuple=True) if as_tuple else torch.nonzero(input)


def argwhere(input: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """OneFlow: ``argwhere``: int32."""
    return torch.argwhere(input).to(dtype)


def searchsorted(
    sorted_sequence: Tensor, values: Any, out_int32: bool = False, right: bool = False
) -> Tensor:
    """OneFlow: ``searchsorted``, where the flags may be positional."""
    return torch.searchsorted(sorted_sequence, values, out_int32=out_int32, right=right)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """OneFlow: ``bincount``, of bools, too, in the dtype of the weights. Of nothing, one 0."""
    found = torch.bincount(input.to(torch.int64), weights, max(minlength or 0, 1))
    return found if weights is None else found.to(weights.dtype)


def in_top_k(targets: Tensor, predictions: Tensor, k: int) -> Tensor:
    """OneFlow: ``in_top_k``: whether fewer than k predictions exceed that of the target.

    Args:
        targets: (n,) of int32 or int64. One out of range is in no top k.
        predictions: (n, classes). A row with an infinity or a NaN has no top k.
    """
    classes = predictions.shape[1]
    inside = (targets >= 0) & (targets < classes)
    at = torch.where(inside, targets, 0).to(torch.int64)[:, None]
    chosen = torch.gather(predictions, 1, at)
    is_sure = torch.isfinite(predictions).all(1) & inside
    return (torch.gt(predictions, chosen).sum(1) < k) & is_sure


def roc_auc_score(label: Tensor, pred: Tensor) -> Tensor:
    """OneFlow: ``roc_auc_score``: the area under the ROC curve; equal predictions count half.

    Returns:
        float32, of shape (1,); NaN where there are no positives or no negatives.
    """
    positive, scores = label.reshape(-1) > 0, pred.reshape(-1).to(torch.float64)
    ordered = torch.sort(scores)[0]
    below = torch.searchsorted(ordered, scores)
    upto = torch.searchsorted(ordered, scores, right=True)
    ranks = (below + upto + 1).to(torch.float64) / 2
    wins = ranks[positive].sum()
    ones = positive.sum().to(torch.float64)
    pairs = ones * (positive.numel() - ones)
    area = (wins - ones * (ones + 1) / 2) / torch.where(pairs > 0, pairs, 1.0)
    return torch.where(pairs > 0, area, torch.nan).to(torch.float32).reshape(1)
