"""Convolutions, grids and sizes as functions: OneFlow's names of arguments, channels first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

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
    """OneFlow: ``nn.functional.grid_sample``; without align_corners it warns of nothing."""
    return functional.grid_sample(input, grid, mode, padding_mode, align_corners)


def grid_sample_by(
    input: Tensor, grid: Tensor, *, interpolation_mode: str, padding_mode: str, align_corners: bool
) -> Tensor:
    """OneFlow: ``_C.grid_sample``."""
    return functional.grid_sample(input, grid, interpolation_mode, padding_mode, align_corners)


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


def _resized(x: Tensor, mode: str, scales: list[float], sizes: Any, **options: Any) -> Tensor:
    if sizes is not None:
        return functional.interpolate(x, size=list(sizes), mode=mode, **options)
    return functional.interpolate(x, scale_factor=scales, mode=mode, **options)


def upsample_linear_1d(
    x: Tensor,
    scale_factor: float = 0.0,
    align_corners: bool = False,
    output_size: Sequence[int] | None = None,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``_C.upsample_linear_1d``."""
    channels_first("upsample_linear_1d", data_format)
    return _resized(x, "linear", [scale_factor], output_size, align_corners=align_corners)


def upsample_nearest_1d(
    x: Tensor,
    scale_factor: float = 0.0,
    output_size: Sequence[int] | None = None,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``_C.upsample_nearest_1d``."""
    channels_first("upsample_nearest_1d", data_format)
    return _resized(x, "nearest", [scale_factor], output_size)


def upsample_nearest_2d(
    x: Tensor,
    height_scale: float = 0.0,
    width_scale: float = 0.0,
    output_size: Sequence[int] | None = None,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``_C.upsample_nearest_2d``."""
    channels_first("upsample_nearest_2d", data_format)
    return _resized(x, "nearest", [height_scale, width_scale], output_size)


def upsample_bilinear_2d(
    x: Tensor,
    height_scale: float = 0.0,
    width_scale: float = 0.0,
    align_corners: bool = False,
    output_size: Sequence[int] | None = None,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``_C.upsample_bilinear_2d``."""
    channels_first("upsample_bilinear_2d", data_format)
    scales = [height_scale, width_scale]
    return _resized(x, "bilinear", scales, output_size, align_corners=align_corners)


def upsample_bicubic_2d(
    x: Tensor,
    height_scale: float = 0.0,
    width_scale: float = 0.0,
    align_corners: bool = False,
    output_size: Sequence[int] | None = None,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``_C.upsample_bicubic_2d``."""
    channels_first("upsample_bicubic_2d", data_format)
    scales = [height_scale, width_scale]
    return _resized(x, "bicubic", scales, output_size, align_corners=align_corners)


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
