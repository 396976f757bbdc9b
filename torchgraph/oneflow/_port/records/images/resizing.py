"""OpenCV's resize of uint8 images in NumPy: the arithmetic that OneFlow's image ops go through.

Bilinear and bicubic weights are 11-bit integers, area weights are float32, as in OpenCV 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Image = Array
"""(height, width, channels), uint8."""

INTERPOLATIONS = ("auto", "bilinear", "nearest_neighbor", "bicubic", "area")
_ONE = 2048
"""1 as a weight of 11 bits."""


class _Taps(NamedTuple):
    """What each pixel of the result is made of along one axis: ``count`` sources and weights."""

    sources: Array
    """(count, size)"""
    weights: np.ndarray[Any, np.dtype[Any]]
    """(count, size)"""


def resized(image: Image, width: int, height: int, interpolation: str) -> Image:
    """The image in another size, with the bytes that OneFlow gives.

    Args:
        interpolation: one of `INTERPOLATIONS`; ``"auto"`` is area where the image has more pixels
            than the result and bilinear elsewhere.
    """
    rows, columns = image.shape[:2]
    if (rows, columns) == (height, width):
        return image
    if interpolation == "auto":
        interpolation = "bilinear" if width * height >= columns * rows else "area"
    if interpolation == "nearest_neighbor":
        found: Image = image[_nearest(rows, height)][:, _nearest(columns, width)]
        return found
    halved = (columns, rows) == (2 * width, 2 * height)
    if interpolation == "area" or (interpolation == "bilinear" and halved):
        if columns >= width and rows >= height:
            return _averaged(image, width, height)
        across, down = _area_taps(columns, width), _area_taps(rows, height, clamped=False)
        return _between(image, across, down)
    if interpolation == "bilinear":
        across, down = _linear_taps(columns, width), _linear_taps(rows, height, clamped=False)
        return _between(image, across, down)
    return _between_four(image, _cubic_taps(columns, width), _cubic_taps(rows, height))


def _nearest(old: int, new: int) -> Array:
    scale = 1.0 / (new / old)
    found: Array = np.minimum(np.floor(np.arange(new) * scale).astype(np.intp), old - 1)
    return found


def _positions(old: int, new: int) -> tuple[Array, Array]:
    """The source left of each pixel's middle, and how far behind it that lies."""
    scale = 1.0 / (new / old)
    middle = ((np.arange(new) + 0.5) * scale - 0.5).astype(np.float32)
    left = np.floor(middle)
    return left.astype(np.intp), middle - left


def _linear_taps(old: int, new: int, *, clamped: bool = True) -> _Taps:
    left, rest = _positions(old, new)
    return _two_taps(left, rest, old, clamped)


def _area_taps(old: int, new: int, *, clamped: bool = True) -> _Taps:
    """Bilinear taps of an image that grows along one axis at least."""
    scale = 1.0 / (new / old)
    left = np.floor(np.arange(new) * scale).astype(np.intp)
    rest = ((np.arange(new) + 1) - (left + 1) * (new / old)).astype(np.float32)
    rest = np.where(rest <= 0, np.float32(0), rest - np.floor(rest))
    return _two_taps(left, rest, old, clamped)


def _two_taps(left: Array, rest: Array, old: int, clamped: bool) -> _Taps:
    """``clamped``: beyond the border the weights are 1 and 0, as OpenCV has it across alone.

    Down both taps are the border then; their weights are rounded apart, which shows in last bits.
    """
    if clamped:
        rest = np.where((left < 0) | (left >= old - 1), np.float32(0), rest).astype(np.float32)
    sources = np.clip(np.stack([left, left + 1]), 0, old - 1)
    return _Taps(sources, _fixed(np.stack([np.float32(1) - rest, rest])))


def _cubic_taps(old: int, new: int) -> _Taps:
    left, x = _positions(old, new)
    a, one = np.float32(-0.75), np.float32(1)
    w0 = ((a * (x + one) - 5 * a) * (x + one) + 8 * a) * (x + one) - 4 * a
    w1 = ((a + 2) * x - (a + 3)) * x * x + one
    w2 = ((a + 2) * (one - x) - (a + 3)) * (one - x) * (one - x) + one
    weights = np.stack([w0, w1, w2, one - w0 - w1 - w2])
    sources = np.clip(left + np.arange(-1, 3)[:, None], 0, old - 1)
    return _Taps(sources, _fixed(weights))


def _fixed(weights: Array) -> Array:
    scaled = np.rint(weights.astype(np.float32) * np.float32(_ONE))
    found: Array = np.clip(scaled, -32768, 32767).astype(np.int32)
    return found


def _across(image: Image, taps: _Taps, dtype: type) -> Array:
    """The weighted sums along each line, added in the order of the taps."""
    columns: Array = np.ascontiguousarray(image.transpose(1, 0, 2)).astype(dtype)
    found: Any = None
    for source, weight in zip(taps.sources, taps.weights, strict=True):
        term = columns[source]  # whole lines in memory: gathering pixels takes far longer
        term *= weight[:, None, None]
        found = term if found is None else np.add(found, term, out=found)
    turned: Array = np.ascontiguousarray(found.transpose(1, 0, 2))
    return turned


def _between(image: Image, across: _Taps, down: _Taps) -> Image:
    rows = _across(image, across, np.int32) >> 4
    parts = zip(down.sources, down.weights, strict=True)
    summed = sum((rows[source] * weight[:, None, None]) >> 16 for source, weight in parts)
    return _bytes((summed + 2) >> 2)


def _between_four(image: Image, across: _Taps, down: _Taps) -> Image:
    """In float32, but for the last bytes of a line, fewer than eight, which OpenCV sums in ints."""
    rows = _across(image, across, np.int32)
    lines = rows.reshape(len(rows), -1)
    vectors = lines.shape[1] // 8 * 8
    scale = np.float32(1.0 / (_ONE * _ONE))
    whole: Any = 0
    parts: Any = None
    for source, weight in list(zip(down.sources, down.weights, strict=True))[::-1]:
        whole = whole + lines[source][:, vectors:] * weight[:, None]
        term = (
            lines[source][:, :vectors].astype(np.float32)
            * (weight.astype(np.float32) * scale)[:, None]
        )
        parts = term if parts is None else parts + term
    found = np.concatenate([_bytes(parts), _bytes((whole + (_ONE * _ONE >> 1)) >> 22)], 1)
    return found.reshape(-1, *rows.shape[1:])


def _bytes(values: Any) -> Image:
    """Rounded, halves to even."""
    found: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return found


def _averaged(image: Image, width: int, height: int) -> Image:
    """Each pixel is the mean of those that it covers."""
    rows, columns = image.shape[:2]
    if rows % height == 0 and columns % width == 0:
        tall, wide = rows // height, columns // width
        cells = image.reshape(height, tall, width, wide, -1).sum((1, 3), dtype=np.int32)
        if (tall, wide) == (2, 2):
            return _bytes((cells + 2) >> 2)
        return _bytes(cells.astype(np.float32) * np.float32(1.0 / (tall * wide)))
    lines, down = _across(image, _cells(columns, width), np.float32), _cells(rows, height)
    found: Any = 0
    for source, weight in zip(down.sources, down.weights, strict=True):
        term = lines[source]
        term *= weight[:, None, None]
        found = found + term
    return _bytes(found)


def _cells(old: int, new: int) -> _Taps:
    """The pixels that each one of the result covers, from left to right, and their shares."""
    scale = 1.0 / (new / old)
    start = np.arange(new) * scale
    end, size = start + scale, np.minimum(scale, old - start)
    last = np.minimum(np.floor(end), old - 1)
    first = np.minimum(np.ceil(start), last)
    whole = np.arange(int((last - first).max()))[:, None]
    left = np.where(first - start > 1e-3, (first - start) / size, 0)
    right = np.minimum(np.minimum(end - last, 1.0), size) / size
    right = np.where(end - last > 1e-3, right, 0)
    middle = np.where(first + whole < last, 1.0 / size, 0)
    sources = np.concatenate([[first - 1], first + whole, [last]]).astype(np.intp)
    weights = np.concatenate([[left], middle, [right]]).astype(np.float32)
    return _Taps(np.clip(sources, 0, old - 1), weights)


def size_in_ratio(
    width: int, height: int, target: int, limits: Sequence[int], *, longer: bool
) -> tuple[int, int]:
    """(width, height) where one side is ``target`` and the ratio is kept, as OneFlow rounds it.

    Args:
        limits: the least that the shorter side, and the most that the longer side may be; 0: none.
        longer: it is the longer side that becomes ``target``.
    """
    least, most = limits
    ratio = np.float32(min(width, height)) / np.float32(max(width, height))
    if longer:
        long, short = target, round(float(target * ratio))
        if least > 0 and short < least:
            long, short = round(float(np.float32(least) / ratio)), least
    else:
        long, short = round(float(np.float32(target) / ratio)), target
        if most > 0 and long > most:
            long, short = most, round(float(most * ratio))
    return (long, short) if width > height else (short, long)
