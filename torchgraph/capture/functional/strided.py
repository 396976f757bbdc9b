"""Slices and selects equal to an ``as_strided`` of a view.

Autograd writes the gradient of a part so, where the part is not of the tensor that is written but
of its real and imaginary numbers. `torch.func.functionalize` follows ``as_strided`` of no view.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence

import torch

aten = torch.ops.aten
_View = Callable[[torch.Tensor], torch.Tensor]


def parts(
    source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> list[_View] | None:
    """The views, one after the other, of ``source``; None where slices cannot show it."""
    start = int(source.storage_offset())
    first = _first(source, 0 if offset is None else offset - start)
    if first is None:
        return None
    wanted = deque(zip(size, stride, strict=True))
    views: list[_View] = []
    for index, count, step in zip(first, source.shape, source.stride(), strict=True):
        dim = len(size) - len(wanted)
        if wanted and _is_slice(*wanted[0], index, count, step):
            length, apart = wanted.popleft()
            by = apart // step
            end = index + (length - 1) * by + 1
            views.append(functools.partial(_slice, dim=dim, first=index, end=end, by=by))
        else:
            views.append(functools.partial(_select, dim=dim, index=index))
    return None if wanted else views


def _first(source: torch.Tensor, distance: int) -> list[int] | None:
    """The index of the element at ``distance`` from the first; None where there is none."""
    found = [0] * source.ndim
    for dim in sorted(range(source.ndim), key=source.stride, reverse=True):
        if source.shape[dim] > 1 and source.stride(dim):
            found[dim], distance = divmod(distance, source.stride(dim))
    inside = all(0 <= i < count for i, count in zip(found, source.shape, strict=True))
    return found if inside and not distance else None


def _is_slice(length: int, apart: int, index: int, count: int, step: int) -> bool:
    if length < 1 or step < 1 or apart < 1 or apart % step:
        return False
    return index + (length - 1) * (apart // step) < count


def _slice(seen: torch.Tensor, *, dim: int, first: int, end: int, by: int) -> torch.Tensor:
    return aten.slice.Tensor(seen, dim, first, end, by)  # type: ignore[no-any-return]  # an op


def _select(seen: torch.Tensor, *, dim: int, index: int) -> torch.Tensor:
    return aten.select.int(seen, dim, index)  # type: ignore[no-any-return]  # an op
