"""Pools as functions: OneFlow's order of arguments, no divisor is 0, channels first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import NotPorted

Size = Any
"""An integer, or one for each dimension."""


def channels_first(name: str, data_format: str) -> None:
    """Refuses another layout than OneFlow's default one.

    Raises:
        NotPorted: channels are not first.
    """
    if data_format != "channels_first":
        raise NotPorted(f"{name} with {data_format!r} is not here.", fix="permute channels first.")


def avg_pool1d(
    input: Tensor,
    kernel_size: Size,
    stride: Size = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``nn.functional.avg_pool1d``; a divisor_override of 0 is none.

    Raises:
        NotPorted: divisor_override is another number.
    """
    channels_first("avg_pool1d", data_format)
    if divisor_override:
        raise NotPorted("avg_pool1d(divisor_override=) is not here.", fix="use avg_pool2d.")
    return functional.avg_pool1d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``nn.functional.avg_pool2d``; a divisor_override of 0 is none."""
    channels_first("avg_pool2d", data_format)
    return functional.avg_pool2d(
        input,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override or None,
    )


def avg_pool3d(
    input: Tensor,
    kernel_size: Size,
    stride: Size = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
    data_format: str = "channels_first",
) -> Tensor:
    """OneFlow: ``nn.functional.avg_pool3d``; a divisor_override of 0 is none."""
    channels_first("avg_pool3d", data_format)
    return functional.avg_pool3d(
        input,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override or None,
    )


def _max_pool(pool: Callable[..., Any], default: bool, both: bool) -> Callable[..., Any]:
    """A pool with return_indices before ceil_mode; `_C`'s gives a pair in any case."""

    def max_pool(
        x: Tensor,
        kernel_size: Size,
        stride: Size = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = default,
        ceil_mode: bool = False,
        data_format: str = "channels_first",
    ) -> Any:
        channels_first("max_pool", data_format)
        sizes = (kernel_size, stride, padding, dilation)
        return pool(x, *sizes, ceil_mode=ceil_mode, return_indices=both or return_indices)

    return max_pool


max_pool1d = _max_pool(functional.max_pool1d, default=False, both=False)
max_pool2d = _max_pool(functional.max_pool2d, default=False, both=False)
max_pool3d = _max_pool(functional.max_pool3d, default=False, both=False)
max_pool1d_pair = _max_pool(functional.max_pool1d, default=True, both=True)
max_pool2d_pair = _max_pool(functional.max_pool2d, default=True, both=True)
max_pool3d_pair = _max_pool(functional.max_pool3d, default=True, both=True)


def adaptive_max_pool1d(input: Tensor, output_size: Size) -> tuple[Tensor, Tensor]:
    """Values and indices. OneFlow: ``_C.adaptive_max_pool1d``."""
    return functional.adaptive_max_pool1d(input, output_size, return_indices=True)


def adaptive_max_pool2d(input: Tensor, output_size: Size) -> tuple[Tensor, Tensor]:
    """Values and indices. OneFlow: ``_C.adaptive_max_pool2d``."""
    return functional.adaptive_max_pool2d(input, output_size, return_indices=True)


def adaptive_max_pool3d(input: Tensor, output_size: Size) -> tuple[Tensor, Tensor]:
    """Values and indices. OneFlow: ``_C.adaptive_max_pool3d``."""
    return functional.adaptive_max_pool3d(input, output_size, return_indices=True)


def pixel_shuffle(input: Tensor, h_upscale_factor: int, w_upscale_factor: int) -> Tensor:
    """(N, C * h * w, H, W) to (N, C, H * h, W * w). OneFlow: ``_C.pixel_shuffle``."""
    batch, channels, height, width = input.shape
    h, w = h_upscale_factor, w_upscale_factor
    if channels % (h * w):
        raise NotPorted(f"{channels} channels are no multiple of {h} * {w}.", fix="make them one.")
    parts = input.reshape(batch, channels // (h * w), h, w, height, width)
    return parts.permute(0, 1, 4, 2, 5, 3).reshape(batch, -1, height * h, width * w)


def one_hot(
    input: Tensor, num_classes: int = -1, on_value: float = 1, off_value: float = 0
) -> Tensor:
    """OneFlow: ``nn.functional.one_hot``; float32 when a value is a float, int64 else."""
    hot = functional.one_hot(input.long(), num_classes)
    if (on_value, off_value) == (1, 0) and isinstance(on_value, int):
        return hot if isinstance(off_value, int) else hot.float()
    return torch.where(hot.bool(), on_value, off_value)
