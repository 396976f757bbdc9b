"""Operations on images: decode, crop at random, resize, normalise."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import BadRecord, MissingPackage, NotPorted
from ..operation import Operation
from ..reading import ENTROPY
from ..values import Array, TensorBuffer, Value, buffer_in, records_in
from .resizing import resized, size_in_ratio

try:
    from PIL import Image, ImageOps
except ModuleNotFoundError:
    raise MissingPackage("Images are decoded by Pillow, which is needed.") from None


_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM", "GIF")
"""Kinds of pictures. Of others Pillow runs programs, such as Ghostscript for EPS."""


def decoded(text: bytes, color_space: str, where: object, *, turned: bool) -> Array:
    """An encoded image as (height, width, 3), uint8.

    Args:
        where: what holds it, for the error.
        turned: as its EXIF orientation says, as `cv::imdecode` does it.

    Raises:
        BadRecord: it is no image, or cut off, or of a kind that is not decoded here.
    """
    try:
        found: Image.Image = Image.open(io.BytesIO(text), formats=_FORMATS)
        kind = found.format
        if found.mode in ("CMYK", "YCbCr", "LAB", "HSV", "F", "I") or "I;" in found.mode:
            raise BadRecord(
                f"{where} holds a {kind} of mode {found.mode}, and grey or RGB images of "
                "8 bits are decoded.",
                fix="convert it to RGB where the file is written.",
            )
        if turned:
            found = ImageOps.exif_transpose(found)
        pixels = np.array(found.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, BadRecord):
            raise
        raise BadRecord(f"{where} holds no image that can be decoded: {error}.") from None
    return pixels if color_space == "RGB" else np.ascontiguousarray(pixels[..., ::-1])


@dataclass(frozen=True)
class Crops:
    """How a part of an image is drawn."""

    attempts: int
    area: tuple[float, float]
    ratio: tuple[float, float]
    """Width to height, least and most."""

    def window(self, height: int, width: int, draw: np.random.Generator) -> tuple[slice, slice]:
        """A part whose share of the area is uniform, whose ratio is in its logarithm.

        Where no attempt fits, the largest part in the middle of the ratios that does.
        """
        tall, wide = self._size(height, width, draw)
        top = int(draw.integers(0, height - tall, endpoint=True))
        left = int(draw.integers(0, width - wide, endpoint=True))
        return slice(top, top + tall), slice(left, left + wide)

    def _size(self, height: int, width: int, draw: np.random.Generator) -> tuple[int, int]:
        least, most = self.ratio
        widest, tallest = max(1, int(height * most)), max(1, int(width / least))
        if height * widest < self.area[0] * height * width:  # too wide for any ratio
            return height, min(widest, width)
        if width * tallest < self.area[0] * height * width:
            return min(tallest, height), width
        for _ in range(self.attempts):
            area = draw.uniform(*self.area) * height * width
            ratio = math.exp(draw.uniform(math.log(least), math.log(most)))
            wide = max(1, math.floor(math.sqrt(area * ratio) + 0.5))
            tall = max(1, math.floor(math.sqrt(area / ratio) + 0.5))
            if wide <= width and tall <= height and least <= wide / tall <= most:
                return tall, wide
        tall, wide = height, width
        if width / height > most:
            wide = min(widest, width)
        elif width / height < least:
            tall = min(tallest, height)
        shrink = math.sqrt(min(1.0, self.area[1] * width * height / (tall * wide)))
        return max(1, int(tall * shrink)), max(1, int(wide * shrink))


@dataclass(frozen=True)
class DecodesImages(Operation):
    """Encoded images, of a feature or of a buffer of bytes, as images or parts of them."""

    name: str | None
    """The feature's name; None: what comes in are the bytes."""
    color_space: str
    crops: Crops | None = None
    seed: int | None = None
    size: tuple[int, int] | None = None
    """(width, height) of the results; None: as they are."""
    turned: bool = False
    dtype: str = "u1"

    def draws(self) -> Iterator[Any]:
        if self.crops is None:
            yield from super().draws()
        root = np.random.SeedSequence(
            self.seed if self.seed is not None else ENTROPY.getrandbits(64)
        )
        while True:
            yield root.spawn(1)[0]

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        draw = None if drawn is None else np.random.default_rng(drawn)
        images = []
        for where, text in self._texts(inputs[0]):
            image = decoded(text, self.color_space, where, turned=self.turned)
            if self.crops is not None and draw is not None:
                image = image[self.crops.window(image.shape[0], image.shape[1], draw)]
            if self.size is not None:
                image = resized(image, *self.size, "bilinear")
            images.append(np.ascontiguousarray(image, dtype=self.dtype))
        if self.size is not None:
            return (torch.from_numpy(np.stack(images)),)
        return (TensorBuffer(images),)

    def _texts(self, given: Value) -> Iterator[tuple[str, bytes]]:
        if self.name is None:
            texts = enumerate(buffer_in(given).values)
            yield from ((f"Image {n} of a batch", text.tobytes()) for n, text in texts)
            return
        for record in records_in(given):
            yield f"{record.place}: the feature {self.name!r}", record.one_text(self.name)


def _bytes(image: Array) -> Array:
    if image.dtype != np.uint8:
        raise NotPorted(
            f"image.Resize is given images of {image.dtype}, and resizes those of uint8.",
            fix="decode with dtype=flow.uint8, and convert after.",
        )
    return image


@dataclass(frozen=True)
class Resizes(Operation):
    """Images to one size: (N, height, width, 3), and (N, 2): the scales across and down."""

    size: tuple[int, int]
    """(width, height)"""
    interpolation: str
    dtype: torch.dtype

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        given = buffer_in(inputs[0])
        found = np.stack([resized(_bytes(v), *self.size, self.interpolation) for v in given.values])
        scales = _scales([v.shape for v in given.values], [self.size] * len(found))
        return torch.from_numpy(found).to(self.dtype), scales, None


@dataclass(frozen=True)
class ResizesInRatio(Operation):
    """Images whose one side becomes ``target``: images, scales, and sizes (width, height)."""

    target: int
    limits: tuple[int, int]
    longer: bool
    interpolation: str

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        given = buffer_in(inputs[0])
        found, sizes = [], []
        for image in given.values:
            height, width = image.shape[:2]
            size = size_in_ratio(width, height, self.target, self.limits, longer=self.longer)
            found.append(resized(_bytes(image), *size, self.interpolation))
            sizes.append(size)
        scales = _scales([v.shape for v in given.values], sizes)
        return TensorBuffer(found), scales, torch.tensor(sizes, dtype=torch.int32)


def _scales(shapes: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, int]]) -> torch.Tensor:
    old = np.array([shape[1::-1] for shape in shapes], np.float32)
    return torch.from_numpy(np.array(sizes, np.float32) / old)
