"""How a container was moved: what is new in it, what lies at another place."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..._torch.modules import is_of_module
from ...live.discovery import Entries
from ..tape.number import node_of

MANY = 64
"""A container with more is data: only what is moved in it is looked at."""

_PLAIN = (bool, int, float, complex, str)
_NOTHING = object()


def items_of(container: Any) -> dict[object, object]:
    """What lies in a dict, a list, a closure's variable or some places of a dict."""
    if isinstance(container, Entries):
        return {name: container.values.get(name) for name in container.names}
    if isinstance(container, types.CellType):
        try:
            return {"it": container.cell_contents}
        except ValueError:
            return {}
    return dict(container.items() if isinstance(container, dict) else enumerate(container))


def keys_moved(before: object, now: object) -> list[object]:
    """Under which something else lies than before, or nothing any more."""
    was, held = items_of(before), items_of(now)
    gone = [key for key, value in was.items() if held.get(key, _NOTHING) is not value]
    return gone + [key for key in held if key not in was]


def plain_in(container: object, keys: Iterable[object] | None = None) -> dict[object, Any]:
    """The numbers, texts and flags, of all or of these keys; those of modules not."""
    held = items_of(container)
    if isinstance(container, dict) and is_of_module(held):
        return {}
    if keys is not None:
        held = {key: held[key] for key in keys if key in held}
    plain = {
        key: value
        for key, value in held.items()
        if isinstance(value, _PLAIN) and node_of(value) is None
    }
    listed = not isinstance(container, (dict, types.CellType, Entries))
    return {**plain, "len": len(plain)} if listed else plain


def equal(before: object, now: object) -> bool:
    """True for two numbers, texts or flags that are one."""
    return type(before) is type(now) and repr(before) == repr(now)


def appended(before: list[object], holder: Any) -> int:
    """How many were appended to a list or deque; a deque that is full drops as many."""
    now = list(holder)
    full = isinstance(holder, deque) and len(now) == holder.maxlen
    for dropped in range(len(before) + 1 if full else 1):
        kept = before[dropped:]
        if len(kept) > len(now) or any(a is not b for a, b in zip(kept, now, strict=False)):
            continue
        new = now[len(kept) :]
        if not dropped or {*map(id, before)}.isdisjoint(map(id, new)):  # else it was turned
            return len(new)
    return 0


def put_behind(before: dict[object, object], now: Any) -> tuple[object, ...]:
    """The keys that were taken out of a dict and put in again, or are new; none in its order."""
    order = {key: number for number, key in enumerate(before)}
    places = [order.get(key, len(order)) for key in now]
    if places == sorted(places):
        return ()
    kept = next(n for n in range(1, len(places)) if places[n] < places[n - 1])
    return tuple(now)[kept:]


def same_items(one: Any, other: Any) -> bool:
    """True for containers of the very same objects."""
    if len(one) != len(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    return all(a is b for a, b in zip(one, other, strict=True))
