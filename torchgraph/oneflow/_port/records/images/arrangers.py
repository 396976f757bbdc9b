"""``oneflow.nn``'s modules that crop, mirror, normalise, flip and pad images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..... import environment
from ...errors import NotPorted
from ..pipeline import performed
from .arranging import Aligns, CropsMirrorsNormalizes, Flips, Normalizes


class CropMirrorNormalize(nn.Module):
    """Crop, mirror, normalise; NHWC to NCHW. OneFlow: ``nn.CropMirrorNormalize``, bit for bit.

    On a tensor of one size it is a part of the step, on a GPU as well; on what decoders give it is
    done ahead of the step, with them.

    Args:
        color_space: how many channels there are: 3 for ``"RGB"`` and ``"BGR"``, 1 for ``"GRAY"``.
        output_layout: without effect, as in OneFlow: NCHW, or NHWC where the environment has
            ``ONEFLOW_ENABLE_NHWC=1``.
        crop_h, crop_w: nothing is cropped where one is 0.
        crop_pos_y, crop_pos_x: the position of the crop, from 0 to 1.
        mean, std: one number, or one for each channel.
        output_dtype: float32.
    """

    def __init__(
        self,
        color_space: str = "BGR",
        output_layout: str = "NCHW",
        crop_h: int = 0,
        crop_w: int = 0,
        crop_pos_y: float = 0.5,
        crop_pos_x: float = 0.5,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        channels = {"RGB": 3, "BGR": 3, "GRAY": 1}.get(color_space)
        if channels is None:
            raise NotPorted(f"{color_space!r} is no color_space.", fix="'RGB', 'BGR' or 'GRAY'.")
        if output_dtype != torch.float32:
            raise NotPorted(
                f"CropMirrorNormalize gives float32, not {output_dtype}.", fix="convert its result."
            )
        self._operation = CropsMirrorsNormalizes(
            "NHWC" if environment.oneflow_nhwc() else "NCHW",
            (crop_h, crop_w),
            (crop_pos_y, crop_pos_x),
            tuple(map(float, mean)),
            tuple(map(float, std)),
            channels,
        )

    def forward(self, input: Any, mirror: Any = None) -> Any:
        """float32 (N, channels, height, width), or (N, height, width, channels).

        Args:
            input: uint8 (N, height, width, channels), or images of several sizes.
            mirror: int8 (N,); where it is not 0, an image is mirrored.
        """
        return performed(self, self._operation, (input, mirror))


class ImageFlip(nn.Module):
    """Images flipped by codes: 1 across, 2 down, 3 both. OneFlow: ``nn.image.flip``."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = Flips()

    def forward(self, images: Any, flip_code: Any) -> Any:
        """The images of a `TensorBuffer`, by a code for each."""
        return performed(self, self._operation, (images, flip_code))


class ImageNormalize(nn.Module):
    """``(x - mean) / std`` of float32 images. OneFlow: ``nn.image.normalize``."""

    def __init__(self, std: Sequence[float], mean: Sequence[float]) -> None:
        super().__init__()
        self._operation = Normalizes(tuple(map(float, mean)), tuple(map(float, std)))

    def forward(self, input: Any) -> Any:
        """The images of a `TensorBuffer`, normalised."""
        return performed(self, self._operation, (input,))


class ImageBatchAlign(nn.Module):
    """Images of several sizes as one tensor with zeros around. OneFlow: ``nn.image.batch_align``.

    Args:
        shape: (height, width, channels) of the result: the largest ones of the batch, the first two
            rounded up to multiples of ``alignment``. When called, NotPorted for another one.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, alignment: int) -> None:
        super().__init__()
        self._operation = Aligns(tuple(shape), dtype, alignment)

    def forward(self, input: Any) -> Any:
        """(N, *shape)."""
        return performed(self, self._operation, (input,))
