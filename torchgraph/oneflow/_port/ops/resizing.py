"""Resizing: by sizes as torch, by factors with OneFlow's places of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from ..errors import NotPorted
from .pooling import channels_first


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Tensor:
    """OneFlow: ``nn.functional.interpolate``.

    Raises:
        NotPorted: without align_corners, a factor gives a dimension its old size, or with nearest
            twice that, and is not 1 or 2. OneFlow places pixels by the factor, torch by 1 or 2.
    """
    are_corners = align_corners or mode == "area"  # then no factor is looked at
    if scale_factor is not None and not recompute_scale_factor and not are_corners:
        _refuse_rounded(input, scale_factor, mode)
    sizes = size if size is None or isinstance(size, int) else list(size)
    factors = scale_factor if isinstance(scale_factor, (int, float)) else _listed(scale_factor)
    return functional.interpolate(
        input, sizes, factors, mode, align_corners, recompute_scale_factor
    )


def _listed(factors: Sequence[float] | None) -> list[float] | None:
    return None if factors is None else list(factors)


def _refuse_rounded(x: Tensor, scale_factor: float | Sequence[float], mode: str) -> None:
    sizes = x.shape[2:]
    is_one = isinstance(scale_factor, (int, float))
    factors = [scale_factor] * len(sizes) if is_one else list(scale_factor)  # type: ignore[arg-type]
    for size, factor in zip(sizes, factors, strict=False):
        ratio = int(size * factor) / size  # type: ignore[operator]
        if ratio != factor and (ratio == 1 or (ratio == 2 and mode == "nearest")):
            raise NotPorted(
                f"interpolate: a size of {size} by a factor of {factor} is {int(size * ratio)}, "
                "for which torch uses another factor than OneFlow.",
                fix="give size=, or recompute_scale_factor=True.",
            )


def _resized(x: Tensor, mode: str, scales: list[float], sizes: Any, **options: Any) -> Tensor:
    if sizes is not None:
        return functional.interpolate(x, size=list(sizes), mode=mode, **options)
    if not options.get("align_corners"):
        _refuse_rounded(x, scales, mode)
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
