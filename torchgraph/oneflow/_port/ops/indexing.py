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


def arg_sort(x: Tensor, direction: str) -> Tensor:
    """Indices of the last dimension in order, int32. OneFlow: ``_C.arg_sort``."""
    if direction not in ("ASCENDING", "DESCENDING"):
        raise NotPorted(f"arg_sort {direction!r}", fix="it is ASCENDING or DESCENDING.")
    return torch.argsort(x, -1, direction == "DESCENDING").int()


def reduce_sum_like(x: Tensor, like: Tensor, axis: Sequence[int]) -> Tensor:
    """A sum over dimensions, in the shape of another tensor. OneFlow: ``_C.reduce_sum_like``."""
    return x.sum(list(axis)).reshape(like.shape) if axis else x
