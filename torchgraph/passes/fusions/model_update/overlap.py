"""Checks that tensors written by an op share no memory with others that it reads or writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch


class _Range(NamedTuple):
    low: int
    high: int
    written: bool
    tensor: torch.Tensor


def dense(tensor: torch.Tensor) -> bool:
    """True when the elements fill a range of memory, in any order, each its own place."""
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != filled:
            return tensor.numel() == 0
        filled *= size
    return True


def overlap(written: Iterable[torch.Tensor], read: Iterable[torch.Tensor]) -> bool:
    """True when a written tensor has an element twice, or one in common with another tensor."""
    ranges = sorted(
        [_range(tensor, True) for tensor in written if tensor.numel()]
        + [_range(tensor, False) for tensor in read if tensor.numel()],
        key=lambda each: each.low,
    )
    reaching: list[_Range] = []
    for this in ranges:
        if this.written and _has_one_twice(this.tensor):
            return True
        reaching = [other for other in reaching if other.high > this.low]
        if any((this.written or other.written) and _meet(this, other) for other in reaching):
            return True
        reaching.append(this)
    return False


def _range(tensor: torch.Tensor, written: bool) -> _Range:
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    low = tensor.data_ptr()
    return _Range(low, low + (last + 1) * tensor.itemsize, written, tensor)


def _has_one_twice(tensor: torch.Tensor) -> bool:
    return not dense(tensor) and _places(tensor).unique().numel() < tensor.numel()


def _meet(left: _Range, right: _Range) -> bool:
    if dense(left.tensor) and dense(right.tensor):
        return True
    return bool(torch.isin(_bytes(left), _bytes(right)).any())


def _bytes(each: _Range) -> torch.Tensor:
    size = each.tensor.itemsize
    return (each.low + _places(each.tensor)[:, None] * size + torch.arange(size)).flatten()


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """The offsets of the elements, in elements from the first."""
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + torch.arange(size) * stride).flatten()
    return places
