"""Values in nested dicts, lists and tuples, as steps keep them and schedulers are called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def map_nested(value: object, kind: type[_Kind], replace: Callable[[_Kind], object]) -> Any:
    """A copy with each value of one kind replaced; other objects are left as they are."""
    if isinstance(value, kind):
        return replace(value)
    if type(value) is dict:
        return {key: map_nested(item, kind, replace) for key, item in value.items()}
    if type(value) is list:
        return [map_nested(item, kind, replace) for item in value]
    if isinstance(value, tuple):
        items = [map_nested(item, kind, replace) for item in value]
        made: Any = getattr(type(value), "_make", type(value))
        return made(items)
    return value
