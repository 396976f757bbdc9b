"""Assignment to a place in the nested dicts, lists and tuples of an optimizer."""

from __future__ import annotations

from typing import Any

from .step import Path


def assign(root: Any, path: Path, value: object) -> None:
    """Set the value at ``path`` below a dict. Inner containers are rebuilt, not written."""
    root[path[0]] = _rebuilt(root[path[0]], path[1:], value)


def _rebuilt(container: Any, path: Path, value: object) -> object:
    if not path:
        return value
    if isinstance(container, dict):
        return {**container, path[0]: _rebuilt(container[path[0]], path[1:], value)}
    items = list(container)
    items[path[0]] = _rebuilt(items[path[0]], path[1:], value)
    return type(container)(items)
