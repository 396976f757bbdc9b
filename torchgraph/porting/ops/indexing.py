"""Reading and writing at indices, by OneFlow's rules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import NotPorted


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """``numpy.take``: ``x`` at indices of one dimension. OneFlow: ``_C.gather``."""
    axis %= x.dim()
    found = x.index_select(axis, indices.reshape(-1).long())
    return found.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def dim_gather(input: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    """``torch.gather`` with indices of any integer dtype. OneFlow: ``_C.dim_gather``.

    Raises:
        NotPorted: sparse_grad is wanted, which OneFlow does not have either.
    """
    if sparse_grad:
        raise NotPorted("gather(sparse_grad=True) is not in OneFlow.", fix="leave it out.")
    return torch.gather(input, dim, index.long())


def gather_nd(params: Tensor, indices: Tensor) -> Tensor:
    """``params`` at the indices in the last dimension. OneFlow: ``_C.gather_nd``."""
    found: Tensor = params[tuple(indices.long().unbind(-1))]
    return found


def batch_gather(x: Tensor, indices: Tensor) -> Tensor:
    """``x`` at indices of the dimension after those of the batch. OneFlow: ``_C.batch_gather``.

    Args:
        x: (batch, n, ...).
        indices: (batch, m).
    """
    axis = indices.dim() - 1
    index = indices.long().reshape(*indices.shape, *[1] * (x.dim() - indices.dim()))
    return torch.gather(x, axis, index.expand(*indices.shape, *x.shape[indices.dim() :]))


def scatternd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros of a shape, with updates added at indices. OneFlow: ``_C.scatternd``."""
    empty = updates.new_zeros(tuple(shape))
    places = tuple(indices.long().unbind(-1))
    return empty.index_put(places, updates, accumulate=True)


def tensor_scatter_nd_update(tensor: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A tensor with updates in place of what was at indices. OneFlow: the same in ``_C``."""
    return tensor.index_put(tuple(indices.long().unbind(-1)), updates)


def nonzero(x: Tensor, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """OneFlow: ``_C.nonzero``, which gives a list in both cases."""
    found: tuple[Tensor, ...] = torch.nonzero(x, as_tuple=True) if as_tuple else (torch.nonzero(x),)
    return found


def where(condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
    """OneFlow: ``_C.where``.

    Raises:
        NotPorted: x or y alone is a number: OneFlow 0.9 then gives float64.
    """
    if isinstance(x, Tensor) != isinstance(y, Tensor):
        raise NotPorted("_C.where of a tensor and a number is float64.", fix="use oneflow.where.")
    return torch.where(condition.bool(), x, y)


def searchsorted(
    sorted_sequence: Tensor, values: Tensor | float, out_int32: bool = False, right: bool = False
) -> Tensor:
    """OneFlow: ``_C.searchsorted``."""
    return torch.searchsorted(sorted_sequence, values, out_int32=out_int32, right=right)


def in_top_k(targets: Tensor, predictions: Tensor, k: int) -> Tensor:
    """Whether each target is among the k largest of its row. OneFlow: ``_C.in_top_k``.

    Args:
        targets: classes, (N).
        predictions: (N, C).
        k: how many count.
    """
    at_target = predictions.gather(1, targets.long().unsqueeze(1))
    return (predictions > at_target).sum(1) < k


def sort(input: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """OneFlow: ``_C.sort``, whose indices are int32."""
    values, indices = torch.sort(input, dim, descending)
    return values, indices.int()


def arg_sort(x: Tensor, direction: str) -> Tensor:
    """Indices of the last dimension in order, int32. OneFlow: ``_C.arg_sort``."""
    if direction not in ("ASCENDING", "DESCENDING"):
        raise NotPorted(f"arg_sort {direction!r}", fix="it is ASCENDING or DESCENDING.")
    return torch.argsort(x, -1, direction == "DESCENDING").int()


def isclose(
    input: Tensor, other: Tensor, atol: float = 1e-8, rtol: float = 1e-5, equal_nan: bool = False
) -> Tensor:
    """OneFlow: ``_C.isclose``; atol comes before rtol."""
    return torch.isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(
    input: Tensor, other: Tensor, atol: float = 1e-8, rtol: float = 1e-5, equal_nan: bool = False
) -> bool:
    """OneFlow: ``_C.allclose``; atol comes before rtol."""
    return torch.allclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


def reduce_sum_like(x: Tensor, like: Tensor, axis: Sequence[int]) -> Tensor:
    """A sum over dimensions, in the shape of another tensor. OneFlow: ``_C.reduce_sum_like``."""
    return x.sum(list(axis)).reshape(like.shape) if axis else x
