"""Small NumPy arrays: constants, known by what they hold. Nothing imports NumPy for them."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class ArrayContent(NamedTuple):
    """What a NumPy array holds."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: bytes | None
    """None for more than can be compared at each call, and for Python objects."""

    @classmethod
    def of(cls, array: Any) -> ArrayContent:
        fits = array.nbytes <= _SMALL and not array.dtype.hasobject
        data = array.tobytes() if fits else None
        return cls(array.dtype.str, array.shape, array.strides, data)

    def array(self) -> Any:
        """A new one."""
        numpy = sys.modules["numpy"]
        return numpy.frombuffer(self.data, self.dtype).reshape(self.shape)


def span(array: Any) -> tuple[int, int]:
    """Where the memory of a NumPy array begins and ends."""
    first = last = int(array.ctypes.data)
    for size, stride in zip(array.shape, array.strides, strict=True):
        first, last = first + min(0, (size - 1) * stride), last + max(0, (size - 1) * stride)
    return first, last + (int(array.itemsize) if array.size else 0)


_SMALL = 4096
"""Bytes of an array that is compared by its content at each call."""
