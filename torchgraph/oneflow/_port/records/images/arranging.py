"""Operations that need no image library: crop, mirror, normalise, flip, pad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import NotPorted
from ..operation import Operation
from ..values import Array, TensorBuffer, Value, buffer_in


@dataclass(frozen=True)
class CropsMirrorsNormalizes(Operation):
    """Crop, mirror, ``(x - mean) / std`` as a product with 1 / std in float32, and layout."""

    layout: str
    crop: tuple[int, int]
    """(height, width); where one is 0, nothing is cropped."""
    position: tuple[float, float]
    """Where the crop lies, from 0 to 1, down and across."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        given, mirror = inputs
        if isinstance(given, TensorBuffer):
            images = torch.stack([self._cropped(torch.from_numpy(v)) for v in given.values])
        else:
            images = self._cropped_of_batch(_tensor(given))
        self._check(images, mirror)
        if isinstance(mirror, torch.Tensor):
            mirrored = (mirror != 0).reshape(-1, 1, 1, 1)
            images = torch.where(mirrored, images.flip(2), images)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=images.device)
        std = torch.tensor(self.std, dtype=torch.float32, device=images.device)
        found = (images.to(torch.float32) - mean) * (1.0 / std)
        return ((found if self.layout == "NHWC" else found.permute(0, 3, 1, 2)).contiguous(),)

    def _check(self, images: torch.Tensor, mirror: Value) -> None:
        if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[3] != self.channels:
            raise NotPorted(
                f"CropMirrorNormalize takes uint8 images (N, height, width, {self.channels}), not "
                f"{images.dtype} of {tuple(images.shape)}.",
                fix="image.Resize gives such images; color_space says how many channels they have.",
            )
        if isinstance(mirror, torch.Tensor) and (
            mirror.dtype != torch.int8 or mirror.shape != images.shape[:1]
        ):
            raise NotPorted(
                f"CropMirrorNormalize takes int8 of ({len(images)},) that say what is mirrored, "
                f"not {mirror.dtype} of {tuple(mirror.shape)}.",
                fix="give CoinFlip the batch size of the reader.",
            )
        several = {len(self.mean), len(self.std)} - {1, self.channels}
        if several:
            raise NotPorted(
                f"CropMirrorNormalize is given {several.pop()} numbers as mean or std of "
                f"{self.channels} channels.",
                fix="give one, or one for each channel.",
            )

    def _cropped_of_batch(self, images: torch.Tensor) -> torch.Tensor:
        if images.ndim != 4 or not all(self.crop):
            return images
        return self._part(
            images, 1, [min(*both) for both in zip(self.crop, images.shape[1:3], strict=True)]
        )

    def _cropped(self, image: torch.Tensor) -> torch.Tensor:
        if not all(self.crop) or self.crop[0] > image.shape[0] or self.crop[1] > image.shape[1]:
            raise NotPorted(
                f"CropMirrorNormalize cuts images of several sizes to crop_h, crop_w = {self.crop},"
                f" which one of {tuple(image.shape)} is smaller than, or which are not given.",
                fix="resize so that each image is at least as large as the crop.",
            )
        return self._part(image, 0, list(self.crop))

    def _part(self, images: torch.Tensor, axis: int, size: list[int]) -> torch.Tensor:
        for at, (wanted, place) in enumerate(zip(size, self.position, strict=True), axis):
            start = int(np.float32(images.shape[at] - wanted) * np.float32(place))
            images = images.narrow(at, start, wanted)
        return images


def _tensor(value: Value) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise NotPorted(
            f"CropMirrorNormalize takes images, not a {type(value).__name__}.",
            fix="give it what an image decoder or image.Resize gives: of Resize, the first result.",
        )
    return value


@dataclass(frozen=True)
class Flips(Operation):
    """Each image by its code: 1 across, 2 down, 3 both."""

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        given, codes = buffer_in(inputs[0]), inputs[1]
        if not isinstance(codes, torch.Tensor) or codes.shape != given.shape:
            raise NotPorted(f"image.flip takes a code for each of {len(given)} images.", fix=_CODES)
        pairs = zip(given.values, codes.tolist(), strict=True)
        return (TensorBuffer([_flipped(image, int(code)) for image, code in pairs]),)


_CODES = "0 leaves an image, 1 flips it across, 2 down, 3 both."


def _flipped(image: Array, code: int) -> Array:
    if code not in (0, 1, 2, 3):
        raise NotPorted(f"{code} is no code of image.flip.", fix=_CODES)
    return np.ascontiguousarray(image[:: -1 if code & 2 else 1, :: -1 if code & 1 else 1])


@dataclass(frozen=True)
class Normalizes(Operation):
    """``(x - mean) / std`` of float32 images, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        given = buffer_in(inputs[0])
        return (TensorBuffer([self._one(image) for image in given.values]),)

    def _one(self, image: Array) -> Array:
        counts = {len(self.mean), len(self.std)} - {1, image.shape[-1]}
        if image.dtype != np.float32 or counts:
            raise NotPorted(
                f"image.normalize takes float32 images with a mean and a std for each channel, not "
                f"{image.dtype} of {image.shape} with {len(self.mean)} and {len(self.std)}.",
                fix="decode with dtype=flow.float.",
            )
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        found: Array = (image - mean) / std
        return found


@dataclass(frozen=True)
class Aligns(Operation):
    """Images in the upper left corner of (N, *shape), with zeros around.

    ``shape`` is the largest height and width, each rounded up to a multiple of ``alignment``:
    with another one OneFlow's images do not lie where that says.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    alignment: int

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        given = buffer_in(inputs[0])
        largest = [max(sizes) for sizes in zip(*(one.shape for one in given.values), strict=True)]
        step = self.alignment
        wanted = (*(-(-size // step) * step for size in largest[:2]), *largest[2:])
        if self.shape != wanted:
            raise NotPorted(
                f"image.batch_align is to make images of {self.shape}; the largest height and "
                f"width of the batch, rounded up to multiples of {step}, make {wanted}.",
                fix="resize to one size.",
            )
        found = torch.zeros(len(given), *self.shape, dtype=self.dtype)
        for place, image in zip(found, given.values, strict=True):
            height, width = image.shape[:2]
            place[:height, :width] = torch.from_numpy(image).to(self.dtype)
        return (found,)
