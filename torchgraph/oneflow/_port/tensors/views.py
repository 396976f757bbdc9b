"""What is a view and what a copy in OneFlow, where torch has it the other way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import NotPorted
from .elementwise.arithmetic import is_differentiated
from .shapes import size_of


def repeat(input: Tensor, *sizes: Any) -> Tensor:
    """OneFlow: ``repeat``. Once in each dim, it is the tensor's memory."""
    return _repeated(torch.Tensor.repeat, input, size_of(sizes))


def tile(input: Tensor, *dims: Any) -> Tensor:
    """OneFlow: ``tile``. Once in each dim, it is the tensor's memory."""
    return _repeated(torch.Tensor.tile, input, size_of(dims))


def _repeated(by: Any, input: Tensor, sizes: Any) -> Tensor:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    found: Tensor = by(input, given)
    is_once = input.is_contiguous() and all(isinstance(n, int) and n == 1 for n in given)
    return input[(None,) * (found.dim() - input.dim()) + (...,)] if is_once else found


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """OneFlow: ``stack``. Of one tensor, it is that one's memory."""
    found = torch.stack(tuple(tensors), dim)
    return tensors[0].unsqueeze(dim) if len(tensors) == 1 else found


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """OneFlow: ``tensor_split``: copies, not views."""
    return tuple(one.clone() for one in torch.tensor_split(input, indices_or_sections, dim))


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """OneFlow: ``hsplit``: copies, not views."""
    return tuple(one.clone() for one in torch.hsplit(input, indices_or_sections))


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """OneFlow: ``vsplit``: copies, not views."""
    return tuple(one.clone() for one in torch.vsplit(input, indices_or_sections))


def narrow(input: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """OneFlow: ``narrow``.

    Raises:
        NotPorted: a start below zero, to which OneFlow 0.9 adds the number of dims, not the size.
    """
    if start < 0 and input.shape[dim] != input.dim():
        raise NotPorted(
            "narrow adds the number of dims to a start below zero in OneFlow 0.9, not the size.",
            fix=f"start={start} + x.shape[{dim}].",
        )
    return torch.narrow(input, dim, start, length)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """OneFlow: ``diagonal``.

    Raises:
        NotPorted: for a gradient by other dims than the first two, which OneFlow 0.9 transposes.
    """
    dims = [one % max(input.dim(), 1) for one in (dim1, dim2)]
    if dims != [0, 1] and is_differentiated(input):
        raise NotPorted(
            "The gradient of diagonal by other dims than 0 and 1 is transposed in OneFlow 0.9.",
            fix="permute x first, so that they are 0 and 1.",
        )
    return torch.diagonal(input, offset, dim1, dim2)


def as_strided(input: Tensor, size: Any, stride: Any, storage_offset: int = 0) -> Tensor:
    """OneFlow: ``as_strided``.

    Raises:
        NotPorted: for a gradient of a tensor that is not contiguous, wrong in OneFlow 0.9.
    """
    if is_differentiated(input) and not input.is_contiguous():
        raise NotPorted(
            "The gradient of as_strided of a tensor that is not contiguous is wrong in OneFlow.",
            fix="x.contiguous() first.",
        )
    return torch.as_strided(input, size, stride, storage_offset)


def fill_(self: Tensor, value: Any) -> Tensor:
    """OneFlow: ``tensor.fill_``.

    Raises:
        NotPorted: a view with gaps, beside whose memory OneFlow 0.9 writes.
    """
    _refuse_gaps("fill_", self)
    return self.fill_(value)


def zero_(input: Tensor) -> Tensor:
    """OneFlow: ``zero_``.

    Raises:
        NotPorted: a view with gaps, beside whose memory OneFlow 0.9 writes.
    """
    _refuse_gaps("zero_", input)
    return input.zero_()


def _refuse_gaps(name: str, x: Tensor) -> None:
    if x.numel() < 2 or x.is_contiguous():
        return
    reach = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    if reach != x.numel():
        raise NotPorted(
            f"{name} of a view with gaps writes beside it in OneFlow 0.9.", fix="x[...] = value."
        )
