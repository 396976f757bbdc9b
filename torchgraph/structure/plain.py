"""What an object is under a class of the user's own, which may show something else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

PLAIN: dict[type, Callable[[Any], object]] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex.conjugate(complex.conjugate(value)),
    str: str.__str__,
    bytes: lambda value: bytes.join(b"", [value, b""]),
}
"""By the class that lays it out, what an object is without its attributes."""

_MEMBERS: tuple[MemberDescriptorType, ...] = tuple(
    vars(functools.partial)[name] for name in ("func", "args", "keywords")
)


def parts_of_partial(value: object) -> tuple[object, tuple[object, ...], dict[str, object]] | None:
    """(function, arguments, keywords) of a `functools.partial`; None for anything else."""
    if not issubclass(type(value), functools.partial):
        return None
    function, args, keywords = (member.__get__(value) for member in _MEMBERS)
    return function, args, keywords
