"""Numbers and texts whose class is the user's own, which may give them attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex.conjugate(complex.conjugate(value)),
    str: str.__str__,
    bytes: lambda value: bytes.join(b"", [value, b""]),
}
"""By the class that lays it out, what an object is without its attributes."""
