"""Differences between two states of a container: new items, and items at other positions."""

from __future__ import annotations

import operator
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...guards import ABSENT
from ...guards.aspects import count, elements, entries_in
from ...guards.names import CONTENT, follow
from ...live.discovery import Entries
from ...objects import is_a

MANY = 64
"""Containers with more items are data: only their changed items are looked at."""


def items_of(container: Any) -> dict[object, object]:
    """The items of a dict, a list, a closure cell or some keys of a dict, by key."""
    if is_a(container, Entries):
        held = container.values
        return {name: held[name] for name in container.names if name in held}
    if is_a(container, types.CellType):
        content = follow(container, CONTENT)
        return {} if content is ABSENT else {None: content}
    return dict(entries_in(container))


def keys_moved(was: dict[object, object], held: dict[object, object]) -> list[object]:
    """The keys whose value was replaced, added or removed."""
    gone = [key for key, value in was.items() if held.get(key, ABSENT) is not value]
    return gone + [key for key in held if key not in was]


def is_full(holder: object) -> bool:
    """True for a deque that drops one for each that is appended."""
    return is_a(holder, deque) and count(holder) == holder.maxlen


def appended(
    before: Sequence[object],
    now: Sequence[object],
    *,
    full: bool,
    same: Callable[[object, object], bool] = operator.is_,
) -> int:
    """The number of items appended to a list; one that is ``full`` drops as many."""
    for dropped in range(len(before) + 1 if full else 1):
        kept = before[dropped:]
        if len(kept) <= len(now) and all(map(same, kept, now)):
            new = now[len(kept) :]
            if not dropped or {*map(id, before)}.isdisjoint(map(id, new)):  # else it was turned
                return len(new)
    return 0


def move_to_end(before: dict[object, object], now: Any) -> tuple[object, ...]:
    """The keys that were popped and set again, or are new, in their order; else none."""
    order = {key: number for number, key in enumerate(before)}
    keys = elements(now)
    places = [order.get(key, len(order)) for key in keys]
    if places == sorted(places):
        return ()
    kept = next(n for n in range(1, len(places)) if places[n] < places[n - 1])
    return tuple(keys[kept:])


def same_items(one: dict[object, object], other: dict[object, object]) -> bool:
    """True for the very same objects under the same keys, in the same order."""
    return list(one) == list(other) and all(one[key] is other[key] for key in one)
