"""Tensors that a step keeps in closures, attributes and containers from call to call."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .._torch import storage_id
from ..aliasing import has_strides
from ..capture.inputs import Call
from ..capture.step import Leaf
from ..discovery import Globals
from ..program import Role
from .host import Assigned
from .nested import map_nested
from .watch import Change

_ITEMS = 64
"""A container with more is data: nothing is looked for in it but what is appended."""

_GROWING = (list, deque)
_PLAIN = (bool, int, float, complex, str)


@dataclass(frozen=True)
class Item:
    """An entry of a dict or list, or what a closure's variable holds."""

    name: str
    holder: Any
    item: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """As `Place.key`."""
        return (id(self.holder), self.item)

    def read(self) -> Any:
        """What is there now; ValueError, KeyError or IndexError when nothing is."""
        if isinstance(self.holder, types.CellType):
            return self.holder.cell_contents
        return self.holder[self.item]

    def write(self, value: Any, call: Call) -> None:
        """As `Place.write`."""
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.item] = value


@dataclass(frozen=True)
class Appended:
    """The end of a list."""

    name: str
    holder: list[Any]
    number: int
    """Of those that the step appends."""

    @property
    def key(self) -> tuple[Any, ...]:
        """As `Place.key`."""
        return (id(self.holder), "append", self.number)

    def write(self, value: Any, call: Call) -> None:
        """As `Place.write`."""
        self.holder.append(value)


@dataclass(frozen=True)
class Empty:
    """A place that held no tensor when the step began, and then was given one."""

    place: Item
    held: Any
    """None where nothing was there."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal ones."""
        held = self.held
        return (*self.place.key, *((repr(held),) if isinstance(held, _PLAIN) else (id(held),)))

    def fits(self) -> bool:
        """True when there is what was there."""
        now = _held(self.place)
        return now is self.held or (isinstance(now, _PLAIN) and _equal(now, self.held))


@dataclass(frozen=True)
class _Part:
    """The n-th tensor of what lies at a place, as the container of a leaf."""

    place: Item
    position: int

    def __getitem__(self, key: str) -> Any:
        return _tensors(self.place.read())[self.position]


class Carried:
    """Of one step. ``containers``: (name, dict, list or cell) that it may keep tensors in."""

    def __init__(self, containers: Sequence[tuple[str, Any]]) -> None:
        self._containers = containers
        self._lists = {
            id(holder): list(holder) for _, holder in containers if isinstance(holder, _GROWING)
        }
        self._all = {place.key: value for place, value in self._entries()}
        self._before = {place.key: (place, value) for place, value in self._places()}
        self._plain = {id(holder): _plain(holder) for _, holder in containers}
        self._moved: list[tuple[Item, Any, Any]] | None = None

    def _places(self) -> Iterator[tuple[Item, Any]]:
        for place, value in self._entries():
            if isinstance(value, (torch.Tensor, tuple)) and _tensors(value):
                yield place, value

    def _entries(self) -> Iterator[tuple[Item, Any]]:
        for name, container in self._containers:
            holder = container.values if isinstance(container, Globals) else container
            for item in self._items(container):
                place = Item(f"{name}.{item}" if name else str(item), holder, item)
                if isinstance(holder, types.CellType):
                    place = Item(name, holder, None)
                try:
                    value = place.read()
                except (KeyError, IndexError, ValueError):
                    continue
                yield place, value

    def _changes(self) -> list[tuple[Item, Any, Any]]:
        """(place, before, now) of each that has other tensors than before the step."""
        if self._moved is None:
            after = {place.key: (place, value) for place, value in self._places()}
            self._moved = []
            for key, (place, now) in after.items():
                before = self._before[key][1] if key in self._before else None
                if not _same(before, now):
                    self._moved.append((place, before, now))
        return self._moved

    def inputs(self, free: Sequence[tuple[Leaf, int]]) -> list[tuple[Leaf, int]]:
        """``free`` with what lay at a place that has something else now as arguments."""
        parts: dict[tuple[Any, ...], Leaf] = {}
        for place, before, _ in self._changes():
            for position, tensor in enumerate(_tensors(before)):
                name = (
                    place.name if isinstance(before, torch.Tensor) else f"{place.name}.{position}"
                )
                root = _Part(place, position)
                parts.setdefault(_where(tensor), Leaf(name, Role.INPUT, root, ("value",), tensor))
        return [
            (parts.get(_where(leaf.value), leaf) if leaf.role is Role.FREE else leaf, index)
            for leaf, index in free
        ]

    def assigned(
        self, slot: Callable[[str, torch.Tensor], Any], owned: Callable[[torch.Tensor], bool]
    ) -> tuple[list[Assigned], str]:
        """What the step assigns, and why no program can; empty when one can.

        Args:
            slot: makes a tensor a result of the program.
            owned: True for a tensor in memory that was there before the step.
        """
        found = []
        gone = self._before.keys() - {place.key for place, _ in self._places()}
        if gone:
            return [], f"{self._before[gone.pop()][0].name} is taken away"
        for place, _, now in self._changes():
            for tensor in _tensors(now):
                if owned(tensor):
                    return [], f"{place.name} is given a tensor that was there before"
            to: Item | Appended = place
            if isinstance(place.holder, _GROWING):
                to = self._appended(place) or place
            tree = map_nested(now, torch.Tensor, partial(slot, to.name))
            found.append(Assigned(to, tree))
        return found, ""

    @property
    def empty(self) -> tuple[Empty, ...]:
        """Places that the step fills: what it does may go by what was there before."""
        return tuple(
            Empty(place, self._all.get(place.key))
            for place, before, _ in self._changes()
            if before is None
            if not (isinstance(place.holder, _GROWING) and self._appended(place))
        )

    def _appended(self, place: Item) -> Appended | None:
        """The end of its list, where the step has appended to it; None where it has not."""
        before = self._lists[id(place.holder)]
        number = place.item - (len(place.holder) - _new(before, place.holder))
        name = place.name.rpartition(".")[0]
        return Appended(name, place.holder, number) if number >= 0 else None

    def _items(self, holder: Any) -> Sequence[Any]:
        if isinstance(holder, types.CellType):
            return [None]
        if isinstance(holder, Globals):
            return holder.names
        if isinstance(holder, _GROWING):
            known = len(holder) - _new(self._lists[id(holder)], holder)
            return range(0 if len(holder) <= _ITEMS else known, len(holder))
        return list(holder) if len(holder) <= _ITEMS else []

    def counted(self) -> list[Change]:
        """Plain values that the step has changed: a program does not."""
        found = []
        for name, holder in self._containers:
            before = self._plain.get(id(holder), {})
            now = _plain(holder)
            for item in {**before, **now}:
                kept = item in before and item in now
                if not kept or not _equal(before[item], now[item]):
                    found.append(Change(name, str(item), False, None))
        return found


def _held(place: Item) -> Any:
    try:
        return place.read()
    except (KeyError, IndexError, ValueError):
        return None


def _plain(holder: Any) -> dict[Any, Any]:
    """The numbers, texts and flags in a closure's variable or a dict; those of modules not."""
    if isinstance(holder, Globals):
        held = {name: holder.values.get(name) for name in holder.names}
        return {key: value for key, value in held.items() if isinstance(value, _PLAIN)}
    if isinstance(holder, types.CellType):
        try:
            held = {"it": holder.cell_contents}
        except ValueError:
            return {}
    else:
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        held = dict[Any, Any](items)
        held = {} if "_parameters" in held or len(held) > _ITEMS else held
    plain = {key: value for key, value in held.items() if isinstance(value, _PLAIN)}
    return plain if isinstance(holder, (dict, types.CellType)) else {**plain, "len": len(plain)}


def _equal(before: Any, now: Any) -> bool:
    return type(before) is type(now) and repr(before) == repr(now)


def _new(before: list[Any], holder: Any) -> int:
    """How many were appended to a list or deque; a deque that is full drops as many."""
    now = list(holder)
    full = isinstance(holder, deque) and len(now) == holder.maxlen
    for dropped in range(len(before) + 1 if full else 1):
        kept = before[dropped:]
        if len(kept) <= len(now) and all(a is b for a, b in zip(kept, now, strict=False)):
            return len(now) - len(kept)
    return 0


def _where(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for a tensor and what ``detach()`` makes of it."""
    if not has_strides(tensor):
        return (id(tensor),)
    place = storage_id(tensor), tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_nested(value, torch.Tensor, found.append)
    return found


def _same(before: Any, now: Any) -> bool:
    one, other = _tensors(before), _tensors(now)
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
