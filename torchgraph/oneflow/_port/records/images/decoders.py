"""``oneflow.nn``'s modules that decode and resize images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .....errors import InvalidOption
from ...errors import NotPorted
from ..pipeline import performed
from .pixels import Crops, DecodesImages, Resizes, ResizesInRatio
from .resizing import INTERPOLATIONS

_AREA, _RATIO = (0.08, 1.0), (0.75, 1.333333)


def _known(color_space: str) -> str:
    if color_space not in ("RGB", "BGR"):
        raise NotPorted(
            f"Images are decoded as RGB or BGR here, not as {color_space!r}.",
            fix="decode as RGB and compute the grey values with torch.",
        )
    return color_space


def _crops(attempts: int, area: Sequence[float], ratio: Sequence[float]) -> Crops:
    if len(area) != 2 or not 0 < area[0] <= area[1] <= 1:
        raise InvalidOption(f"random_area is two shares of an image, least and most, not {area!r}.")
    if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1]:
        raise InvalidOption(f"random_aspect_ratio is two ratios, least and most, not {ratio!r}.")
    return Crops(attempts, (area[0], area[1]), (ratio[0], ratio[1]))


def _seed(given: int | None) -> int | None:
    return None if given is None else given & (2**64 - 1)


class OFRecordImageDecoder(nn.Module):
    """An encoded image of each record. OneFlow: ``nn.OFRecordImageDecoder``.

    JPEGs come out with OneFlow's bytes, where both are built with libjpeg-turbo; their EXIF
    orientation is left aside, as there. OneFlow ends the process for BGR, its default, and for
    PNGs; here both work.

    Args:
        blob_name: the name of the feature.
        color_space: ``"RGB"`` or ``"BGR"``.

    Returns, when called: a `TensorBuffer` of (height, width, 3), uint8.
    """

    def __init__(self, blob_name: str, color_space: str = "BGR") -> None:
        super().__init__()
        self._operation = DecodesImages(blob_name, _known(color_space))

    def forward(self, input: Any) -> Any:
        """The images."""
        return performed(self, self._operation, (input,))


class OFRecordImageDecoderRandomCrop(nn.Module):
    """A part of each image, drawn at random. OneFlow: ``nn.OFRecordImageDecoderRandomCrop``.

    The distribution of the parts is OneFlow's, the stream is not: a seed gives other parts than
    there. The image is decoded as a whole and cut; OneFlow decodes the part alone, which changes
    colours at its edges in JPEGs with subsampled colour.

    Args:
        blob_name, color_space: as for `OFRecordImageDecoder`.
        num_attempts: draws of a size, before the largest one that fits is taken.
        random_seed: None: another one each time.
        random_area: least and most of the image's area.
        random_aspect_ratio: least and most of width to height.
    """

    def __init__(
        self,
        blob_name: str,
        color_space: str = "BGR",
        num_attempts: int = 10,
        random_seed: int | None = None,
        random_area: Sequence[float] = _AREA,
        random_aspect_ratio: Sequence[float] = _RATIO,
    ) -> None:
        super().__init__()
        crops = _crops(num_attempts, random_area, random_aspect_ratio)
        self._operation = DecodesImages(blob_name, _known(color_space), crops, _seed(random_seed))

    def forward(self, input: Any) -> Any:
        """The parts."""
        return performed(self, self._operation, (input,))


class OFRecordImageGpuDecoderRandomCropResize(nn.Module):
    """Parts of encoded images, resized: ``nn.OFRecordImageGpuDecoderRandomCropResize``.

    What comes in are the bytes that `OFRecordBytesDecoder` gives; what comes out is
    (N, target_height, target_width, 3), RGB, uint8. It is done on the CPU, by OpenCV's bilinear
    interpolation; OneFlow does it on a GPU, whose rounding is another one and was not compared.
    The distribution of the parts is OneFlow's.

    Args:
        num_workers, warmup_size, max_num_pixels: without effect: they are nvJPEG's.
        others: as for `OFRecordImageDecoderRandomCrop`.
    """

    def __init__(
        self,
        target_width: int,
        target_height: int,
        num_attempts: int | None = 10,
        seed: int | None = 0,
        random_area: Sequence[float] | None = _AREA,
        random_aspect_ratio: Sequence[float] | None = _RATIO,
        num_workers: int | None = 3,
        warmup_size: int | None = 6400,
        max_num_pixels: int | None = 67108864,
    ) -> None:
        super().__init__()
        crops = _crops(num_attempts or 10, random_area or _AREA, random_aspect_ratio or _RATIO)
        size = _size("target_width, target_height", (target_width, target_height))
        self._operation = DecodesImages(None, "RGB", crops, _seed(seed), size)

    def forward(self, input: Any) -> Any:
        """The resized parts."""
        return performed(self, self._operation, (input,))


class ImageDecode(nn.Module):
    """Images of bytes. OneFlow: ``nn.image.decode``.

    Turned as their EXIF orientation says, as there.

    Args:
        dtype: uint8 or float32.
        color_space: ``"RGB"`` or ``"BGR"``.
    """

    def __init__(self, dtype: torch.dtype = torch.uint8, color_space: str = "BGR") -> None:
        super().__init__()
        kinds = {torch.uint8: "u1", torch.float32: "f4"}
        if dtype not in kinds:
            raise NotPorted(f"image.decode gives uint8 or float32, not {dtype}.")
        color_space = _known(color_space)
        self._operation = DecodesImages(None, color_space, turned=True, dtype=kinds[dtype])

    def forward(self, input: Any) -> Any:
        """The images."""
        return performed(self, self._operation, (input,))


def _size(name: str, found: Any) -> tuple[int, int]:
    if (
        not isinstance(found, (list, tuple))
        or len(found) != 2
        or not all(isinstance(one, int) and one > 0 for one in found)
    ):
        raise InvalidOption(f"{name} is (width, height), not {found!r}.")
    return found[0], found[1]


_OLDER_TYPES = {"Linear": "bilinear", "NN": "nearest_neighbor", "Cubic": "bicubic"}


class ImageResize(nn.Module):
    """Images of other sizes, by OpenCV's arithmetic, bit for bit. OneFlow: ``nn.image.Resize``.

    Args:
        target_size: (width, height), or, with ``keep_aspect_ratio``, the length of one side.
        min_size, max_size: the least that the shorter side, the most that the longer one may be.
        resize_side: ``"shorter"`` or ``"longer"``: the side of length ``target_size``.
        channels: 3.
        dtype: of the result of one size; uint8 if not given.
        interpolation_type: ``"bilinear"``, ``"nearest_neighbor"``, ``"bicubic"``, ``"area"``, or
            ``"auto"``: area where images shrink, bilinear where they grow.
        color_space, interp_type, resize_shorter, resize_x, resize_y: older names of the same.
        name: without effect, as in OneFlow.

    Returns, when called: (images, scales, sizes). Images are (N, height, width, 3), or with
        ``keep_aspect_ratio`` a `TensorBuffer`; scales are float32 (N, 2), across and down; sizes
        are int32 (N, 2), (width, height), or None where there is one size.

    Raises:
        NotPorted, InvalidOption.
    """

    def __init__(
        self,
        target_size: int | Sequence[int] | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        keep_aspect_ratio: bool = False,
        resize_side: str = "shorter",
        channels: int = 3,
        dtype: torch.dtype | None = None,
        interpolation_type: str = "auto",
        name: str | None = None,
        color_space: str | None = None,
        interp_type: str | None = None,
        resize_shorter: int = 0,
        resize_x: int = 0,
        resize_y: int = 0,
    ) -> None:
        super().__init__()
        if channels != 3 or (color_space or "RGB").upper() not in ("RGB", "BGR"):
            raise NotPorted("image.Resize resizes images of 3 channels.", fix="channels=3")
        if interp_type is not None:
            interpolation_type = _OLDER_TYPES.get(interp_type, interp_type)
        if interpolation_type not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise InvalidOption(
                f"{interpolation_type!r} is no interpolation_type; they are {known}."
            )
        if resize_x > 0 and resize_y > 0:
            target_size, keep_aspect_ratio = (resize_x, resize_y), False
        if resize_shorter > 0:
            target_size, keep_aspect_ratio, resize_side = resize_shorter, True, "shorter"
        self._operation: Resizes | ResizesInRatio
        if not keep_aspect_ratio:
            size = _size("target_size", target_size)
            self._operation = Resizes(size, interpolation_type, dtype or torch.uint8)
            return
        limits = (min_size or 0, max_size or 0)
        if resize_side not in ("shorter", "longer"):
            raise InvalidOption(f"resize_side is 'shorter' or 'longer', not {resize_side!r}.")
        _check_side(target_size, limits)
        self._operation = ResizesInRatio(
            int(target_size),  # type: ignore[arg-type] # checked
            limits,
            resize_side == "longer",
            interpolation_type,
        )

    def forward(self, input: Any) -> Any:
        """(images, scales, sizes)."""
        return performed(self, self._operation, (input,))


def _check_side(target: Any, limits: tuple[int, int]) -> None:
    least, most = limits
    if not isinstance(target, int) or target < 1:
        raise InvalidOption(f"target_size is one length with keep_aspect_ratio, not {target!r}.")
    if target < least or (most and target > most):
        raise InvalidOption(
            f"target_size {target} is not between min_size {least} and max_size {most}."
        )
