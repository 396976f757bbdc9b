"""Unique display names of places, the same in each recording of a step."""

from __future__ import annotations

import itertools
import types
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...guards.aspects import Same
from ...live.discovery import Entries
from ...objects import is_a
from ..tape.watch import is_plain


class Titles:
    """Display names of containers and of places in them.

    ``state["queue"]`` is another container for each parameter, and two modules have one text.
    """

    def __init__(self, containers: Sequence[tuple[str, Any]]) -> None:
        self._found: dict[tuple[int, object], str] = {}
        used: Counter[tuple[str, bool]] = Counter()
        for name, container in containers:
            some = is_a(container, Entries)
            for item in container.names if some else (None,):
                title = _dotted(name, item) if some else name
                place = title, some or is_a(container, types.CellType)
                used[place] += 1
                number = f" ({used[place]})" if used[place] > 1 else ""
                self._found[id(container.values if some else container), item] = title + number

    def of(self, container: object, item: object) -> str:
        """The display name of a place in one of the containers."""
        if isinstance(container, Entries):
            return self._found[id(container.values), item]
        title = self._found[id(container), None]
        return title if isinstance(container, types.CellType) else _dotted(title, item)


def _dotted(name: str, item: object) -> str:
    return f"{name}.{_text(item)}" if name else _text(item)


def _text(item: object) -> str:
    if isinstance(item, str):
        return repr(item) if item[:1] in tuple("-0123456789(") else item
    if type(item) is int:
        return str(item)
    if is_plain(item):
        return f"({item!r})"
    if type(item) is tuple:
        return f"({', '.join(map(_text, item))})"
    return f"{type(item).__name__} {_number_of(item)}"


_KNOWN: dict[int, tuple[Same, int]] = {}
_NEXT = itertools.count(1)


def _number_of(key: object) -> int:
    """A process-wide number for a dict key that is no plain value."""
    known = _KNOWN.get(id(key))
    if known is None or known[0]() is not key:
        known = _KNOWN[id(key)] = Same(key), next(_NEXT)
    return known[1]
