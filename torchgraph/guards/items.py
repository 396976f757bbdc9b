"""Identity snapshots of containers: equal identities mean that the last look still holds."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from .aspects import DEEPEST, MOST, Same, is_container, look

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_BUILT_IN = frozenset({dict, OrderedDict, list, tuple, set, frozenset, deque})
"""Their iterators run no code of the user's."""
_END = object()


class Items:
    """A snapshot of the identities of a container's items, nested ones included.

    Args:
        views: iterables over the items in their order, now and later.
    """

    def __init__(self, views: list[Iterable[object]]) -> None:
        self._views = views
        held = list(chain.from_iterable(views))
        self._held = [*held, _END]
        self.plain = (PLAIN | _BUILT_IN).issuperset(map(type, held))
        """True where all of them are numbers, strings and containers."""

    @classmethod
    def of(cls, value: object) -> Items | None:
        """The snapshot; None for large containers, and those with mutable items or tensors."""
        views: list[Iterable[object]] = []
        return cls(views) if is_container(value) and _spread(value, views, 0) else None

    def hold(self) -> bool:
        """True where the container still holds the very same objects."""
        now = chain(chain.from_iterable(self._views), (_END,))
        return all(map(operator.is_, now, self._held))


def _spread(value: Any, views: list[Iterable[object]], level: int) -> bool:
    """Collect the iterables over a container; False where identities do not determine its look."""
    if type(value) not in _BUILT_IN or level >= DEEPEST or len(value) > MOST:
        return False
    views += _parts(value)
    return all(
        _spread(item, views, level + 1) if is_container(item) else _stays(item)
        for item in _not_plain(value)
    )


def _parts(value: Any) -> list[Iterable[object]]:
    """The iterables over a container: of a dict its keys first."""
    return [value, value.values()] if isinstance(value, dict) else [value]


def _not_plain(value: object) -> Iterator[object]:
    """The items, unless all are numbers and strings: one set operation, which is quick."""
    return chain.from_iterable(
        part for part in _parts(value) if not PLAIN.issuperset(map(type, part))
    )


def _stays(item: object) -> bool:
    """True for an item that a look takes by identity, or an immutable one."""
    if type(item) in PLAIN:
        return True
    return not isinstance(item, torch.Tensor) and type(look(item)) is Same


def is_plain_throughout(value: object, level: int = 0) -> bool:
    """True for a container of numbers and strings, and of such containers."""
    if type(value) in PLAIN:
        return True
    if type(value) not in _BUILT_IN or level >= DEEPEST:
        return False
    return all(is_plain_throughout(item, level + 1) for item in _not_plain(value))
