"""Convolutions, grids and sizes as functions: OneFlow's names of arguments, channels first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional

from ..errors import NotPorted
from .pooling import Size, channels_first


def _convolution(convolution: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        channel_pos: str = "channels_first",
    ) -> Tensor:
        channels_first("a convolution", channel_pos)
        return convolution(input, weight, bias, stride, padding, dilation, groups)

    return conv


conv1d = _convolution(functional.conv1d)
conv2d = _convolution(functional.conv2d)
conv3d = _convolution(functional.conv3d)


def _transposed(convolution: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def deconv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        dilation: Size = 1,
        data_format: str = "channels_first",
    ) -> Tensor:
        channels_first("a transposed convolution", data_format)
        return convolution(input, weight, bias, stride, padding, output_padding, groups, dilation)

    return deconv


deconv1d = _transposed(functional.conv_transpose1d)
deconv2d = _transposed(functional.conv_transpose2d)
deconv3d = _transposed(functional.conv_transpose3d)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """OneFlow: ``nn.functional.affine_grid``; without align_corners it warns of nothing."""
    return functional.affine_grid(theta, list(size), align_corners)


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """OneFlow: ``nn.functional.grid_sample``; without align_corners it warns of nothing.

    Raises:
        NotPorted: mode is nearest: half-way between two pixels OneFlow takes another one.
    """
    if mode == "nearest":
        raise NotPorted(
            "grid_sample(mode='nearest') is not here: OneFlow rounds halves away from zero.",
            fix="use bilinear, or torch.nn.functional.grid_sample, which rounds them to even.",
        )
    return functional.grid_sample(input, grid, mode, padding_mode, align_corners)


def grid_sample_by(
    input: Tensor, grid: Tensor, *, interpolation_mode: str, padding_mode: str, align_corners: bool
) -> Tensor:
    """OneFlow: ``_C.grid_sample``."""
    return grid_sample(input, grid, interpolation_mode, padding_mode, align_corners)


def fold(
    x: Tensor,
    output_size: Size,
    kernel_size: Size,
    dilation: Size = 1,
    padding: Size = 0,
    stride: Size = 1,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``nn.functional.fold``."""
    channels_first("fold", data_format)
    return functional.fold(x, output_size, kernel_size, dilation, padding, stride)


def unfold(
    x: Tensor,
    kernel_size: Size,
    dilation: Size = 1,
    padding: Size = 0,
    stride: Size = 1,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``nn.functional.unfold``."""
    channels_first("unfold", data_format)
    return functional.unfold(x, kernel_size, dilation, padding, stride)


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0) -> Tensor:
    """OneFlow: ``nn.functional.pad``; a value other than 0 is for constant only."""
    return functional.pad(x, list(pad), mode, value if mode == "constant" else None)


def embedding_of(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """OneFlow: ``_C.embedding``; the weight comes first."""
    return functional.embedding(
        indices, weight, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq
    )
