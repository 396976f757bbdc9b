"""Writes of a step to Python places without tensors, as destinations that replays assign."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...effects.entry_state import Keyed, Named
from ...effects.side_effects import Assigned, Destination
from ...effects.trees import Trees, constant
from ...guards.aspects import items_in, look
from ...guards.names import By, Name, Path, follow
from ...live.inputs import Call
from ...live.named import place_of, put
from ...structure import Unfit
from ..chains.touched import Touched
from ..tape.watch import is_plain
from .moved import appended, is_full


@dataclass(frozen=True)
class Refilled(Keyed):
    """The contents of a container without tensors, nested containers included."""

    container: object
    name: Name | None = field(default=None, compare=False)
    """A name that leads to the container or to its successor."""

    def write(self, value: Any, call: Call) -> None:
        """Fill each container with its parts."""
        now = self.container if self.name is None else follow(self.name.owner(), self.name.path)
        for kind, held, parts in value:
            kind.refill(now if held is self.container else held, parts)


@dataclass(frozen=True)
class Overwritten(Keyed):
    """The contents of an array that is written in place."""

    buffer: Any

    def write(self, value: object, call: Call) -> None:
        """Copy ``value`` into it."""
        self.buffer[... if hasattr(value, "shape") else slice(None)] = value


@dataclass(frozen=True)
class Counter(Keyed):
    """A place that is incremented: ``calls += 1``."""

    name: Name

    def write(self, value: object, call: Call) -> None:
        """Add ``value`` to the place."""
        owner = self.name.owner()
        if owner is not None:
            put(owner, self.name.path, operator.add(follow(owner, self.name.path), value))


@dataclass(frozen=True)
class Extended(Keyed):
    """The end of a list without tensors."""

    container: Any

    def write(self, value: object, call: Call) -> None:
        """Append all in ``value``."""
        self.container.extend(value)


def repetition(
    one: Touched, value: object, trees: Trees, slot: Callable[[Any], object]
) -> Assigned | None:
    """The assignment that repeats a write-only change; None where none can.

    Args:
        value: the present value of the place.
        slot: gives the slot of a number that the step computed.
    """
    name, before = one.name, one.name.found
    if one.container is not None and one.container is value:
        more = _appended(before, value)
        return None if more is None else _anew(Extended(value), more, trees, slot)
    if not name.path:
        return None
    if not is_plain(value):
        return None if one.counted else _anew(Named(name), value, trees, slot)
    if not one.counted:
        return Assigned(Named(name), constant(value))
    by = _moved_on(before, value)
    return None if by is None else Assigned(Counter(name), constant(by))


def _anew(
    place: Destination, value: object, trees: Trees, slot: Callable[[Any], object]
) -> Assigned | None:
    """An assignment of a value that each call makes anew."""
    try:
        return Assigned(place, trees.of(value, slot))
    except Unfit:
        return None


def _moved_on(before: object, now: object) -> object:
    """The increment of ``+=``; None where it cannot be told."""
    if not isinstance(before, tuple) or before[0] is not type(now) or len(before) == 1:
        return None
    if type(now) is int:
        return now - before[1]
    if type(now) is str and now.startswith(before[1]):
        return now[len(before[1]) :]
    if type(now) is tuple:
        return _behind(before, now)
    return None


def _appended(before: object, now: object) -> tuple[object, ...] | None:
    listed = type(now) in (list, deque) and isinstance(before, tuple) and before[0] is type(now)
    return _behind(before, now) if listed else None


def _behind(before: Any, now: Any) -> tuple[object, ...] | None:
    """The appended items; None where others have moved, or there are too many."""
    if not isinstance(before[1], tuple):
        return None
    lay, lies = items_in(before), items_in(look(now))
    new = appended(lay, lies, full=is_full(now), same=operator.eq)
    return tuple(now)[len(now) - new :] or None


def around_tuples(name: Name) -> Name:
    """The place of the outermost tuple on a path: no item of a tuple can be assigned."""
    owner, path = name.owner(), name.path
    while len(path) > 1 and isinstance(follow(owner, path[:-1]), tuple):
        path = path[:-1]
    return replace(name, path=path)


def takes_tensors(name: Name) -> bool:
    """False for an attribute of a class and for a slot: no program puts a tensor there."""
    by, key = name.path[-1] if name.path else (By.OWN, "")
    return by is not By.CLASS and (by is not By.SLOT or key == "cell_contents")


def holder_at(owner: object, path: Path) -> tuple[object, object]:
    """The object that holds the end of a path, and the key in it."""
    holder, by, key = place_of(owner, path)
    return (owner if by is By.SLOT else holder), key


def places_on(name: Name) -> Iterator[tuple[object, object]]:
    """(holder, key) of each step of a name's path."""
    owner = name.owner()
    for length in range(1, len(name.path) + 1):
        yield holder_at(owner, name.path[:length])
