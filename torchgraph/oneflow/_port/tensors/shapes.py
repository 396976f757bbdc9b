"""Shapes: functions that torch has as methods only, and products with transposed factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import NotPorted


def size_of(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size


def expand(input: Tensor, *size: Any) -> Tensor:
    """OneFlow: ``expand``."""
    return input.expand(size_of(size))


def view(input: Tensor, *shape: Any) -> Tensor:
    """OneFlow: ``view``. In its Graph slices are contiguous, so that it may follow.

    Where torch has no view, this is a copy; OneFlow in eager has an error there.
    """
    is_dtype = len(shape) == 1 and isinstance(shape[0], torch.dtype)
    if is_dtype or input.is_contiguous():
        return input.view(*shape) if is_dtype else input.view(size_of(shape))
    return input.reshape(size_of(shape))


def reshape(input: Tensor, *sizes: Any, shape: Any = ()) -> Tensor:
    """OneFlow: ``reshape``, with numbers, too."""
    return torch.reshape(input, size_of(sizes) if sizes else tuple(shape))


def permute(input: Tensor, *order: Any, dims: Any = ()) -> Tensor:
    """OneFlow: ``permute``, with numbers, too."""
    return torch.permute(input, size_of(order) if order else tuple(dims))


def contiguous(input: Tensor) -> Tensor:
    """OneFlow: ``contiguous``: a copy in any case."""
    return input.clone(memory_format=torch.contiguous_format)


def contiguous_(self: Tensor) -> Tensor:
    """OneFlow: ``tensor.contiguous_``: the tensor itself lies in order."""
    if not self.is_contiguous():
        self.data = self.data.contiguous()
    return self


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """OneFlow: ``flatten``. A tensor without dimensions stays one."""
    return torch.flatten(input, start_dim, end_dim) if input.dim() else input


def flip(input: Tensor, dims: Any) -> Tensor:
    """OneFlow: ``flip``, with one dim, too."""
    return torch.flip(input, [dims] if isinstance(dims, int) else dims)


def transpose(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``transpose(x, dim0, dim1)`` and ``transpose(x, perm)``."""
    perm = kwargs.get("perm", args[0] if args else None)
    if perm is None or isinstance(perm, int):
        return torch.transpose(input, *args, **kwargs)
    return torch.permute(input, perm)


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """OneFlow: ``roll``. A single dim of -1 means the flat tensor, as none does.

    Raises:
        NotPorted: other negative dims, which are wrong in OneFlow 0.9.
    """
    given = [dims] if isinstance(dims, int) else list(dims or ())
    if given == [-1]:
        return torch.roll(input, shifts)
    if any(one < 0 for one in given):
        raise NotPorted("roll with a negative dim is wrong in OneFlow 0.9.", fix="x.dim() - 1.")
    return torch.roll(input, shifts, given) if given else torch.roll(input, shifts)


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """OneFlow: ``squeeze``, where the dim may be None."""
    return torch.squeeze(input) if dim is None else torch.squeeze(input, dim)


def broadcast_like(x: Tensor, like_tensor: Tensor, broadcast_axes: Sequence[int] = ()) -> Tensor:
    """OneFlow: ``broadcast_like``: to another's shape.

    Args:
        broadcast_axes: the dims that ``x`` lacks or has as 1.
    """
    shape = like_tensor.shape
    if x.dim() < len(shape) and broadcast_axes:
        for axis in sorted(a % len(shape) for a in broadcast_axes):
            x = x.unsqueeze(axis)
    return x.expand(shape)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """OneFlow: ``meshgrid``, with ``ij`` by default."""
    return torch.meshgrid(*tensors, indexing=indexing)


def tril(input: Tensor, diagonal: int = 0, fill_value: Any = 0) -> Tensor:
    """OneFlow: ``tril``, with another value above."""
    return _filled(torch.tril, input, diagonal, fill_value)


def triu(input: Tensor, diagonal: int = 0, fill_value: Any = 0) -> Tensor:
    """OneFlow: ``triu``, with another value below."""
    return _filled(torch.triu, input, diagonal, fill_value)


def _filled(by: Any, input: Tensor, diagonal: int, value: Any) -> Tensor:
    found: Tensor = by(input, diagonal)
    if not value:
        return found
    kept = by(torch.ones_like(input, dtype=torch.bool), diagonal)
    return found.masked_fill(torch.logical_not(kept), value)


def matmul(
    input: Tensor,
    other: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
) -> Tensor:
    """OneFlow: ``matmul``, of factors transposed in their last two dims, times alpha."""
    a = input.mT if transpose_a else input
    b = other.mT if transpose_b else other
    found = torch.matmul(a, b)
    return found if alpha == 1 else found * alpha


def _refuse_factors(name: str, dtype: torch.dtype, *factors: Any) -> None:
    is_small = dtype == torch.uint8 and any(one != 1 for one in factors)
    if is_small or (not dtype.is_floating_point and any(isinstance(f, float) for f in factors)):
        raise NotPorted(
            f"{name} of {dtype} with these alpha and beta has other dtypes or numbers in OneFlow.",
            fix="x.float() first.",
        )


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, alpha: Any = 1, beta: Any = 1) -> Tensor:
    """OneFlow: ``addmm``, where alpha and beta may be positional.

    Raises:
        NotPorted: of integers, factors that are floats; of uint8, any.
    """
    _refuse_factors("addmm", input.dtype, alpha, beta)
    return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """OneFlow: ``baddbmm``. Of integers it is float32.

    Raises:
        NotPorted: of integers, factors that are floats; of uint8, any.
    """
    _refuse_factors("baddbmm", input.dtype, alpha, beta)
    found = torch.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha)
    return found if found.is_floating_point() else found.to(torch.float32)


def stft(input: Tensor, n_fft: int, *args: Any, **kwargs: Any) -> Tensor:
    """OneFlow: ``stft``: real and imaginary parts in a last dim, unless ``return_complex``."""
    names = ("hop_length", "win_length", "window", "center", "pad_mode", "normalized", "onesided")
    given = dict(zip((*names, "return_complex"), args, strict=False)) | kwargs
    if given.pop("return_complex", False):
        raise NotPorted("stft(return_complex=True) is not in OneFlow 0.9.", fix="leave it out.")
    if given.get("window") is None:
        size = given.get("win_length") or n_fft
        given["window"] = torch.ones(size, dtype=input.dtype, device=input.device)
    return torch.view_as_real(torch.stft(input, n_fft, return_complex=True, **given))
