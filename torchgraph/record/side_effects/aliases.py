"""Aliases: objects that a step stores in a second place or returns: ``self.last = cfg.steps``.

A replay leaves them there: the identity of the object at its first place is a guard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import replace
from types import FunctionType

from ...errors import SourceLine
from ...guards.aspects import Aspect, Same, is_container, shown
from ...guards.names import By, Name, follow
from ..chains.inside import (
    containers_within,
    is_told_apart,
    lying_in,
    moved_in,
    objects_in,
    tensors_within,
)
from ..chains.resolve import Source
from ..chains.touched import Cell, Touched
from .written import holder_at


class Aliases:
    """The objects that one step stores in a second place, or returns."""

    def __init__(self) -> None:
        self._held: dict[int, object] = {}
        self._named: dict[object, tuple[object, Name]] = {}

    def hold(self, value: object) -> None:
        """Note that the step stores ``value`` in another place."""
        if is_container(value) or is_told_apart(value):
            self._held[id(value)] = value

    def hold_left(self, touched: Sequence[Touched], returned: object, old: KeysView[int]) -> None:
        """Note all of ``old`` inside what the step returns or leaves anywhere."""
        self._hold_in(returned, old)
        for one in touched:
            if one.name.moved:
                value = follow(one.name.owner(), one.name.path)
                for item in moved_in(value, one.name.found) if one.container is value else [value]:
                    self._hold_in(item, old)
        self._hold_twice(touched, old)

    def _hold_in(self, value: object, old: KeysView[int]) -> None:
        found = {**objects_in(value), **tensors_within(value)}
        self._held.update((key, found[key]) for key in old & found.keys())

    def _hold_twice(self, touched: Sequence[Touched], old: KeysView[int]) -> None:
        """Note the objects at two places that the step reads or writes: a replay moves neither."""
        places: dict[int, set[object]] = defaultdict(set)
        for one in touched:
            owner, path = one.name.owner(), one.name.path
            around, first = holder_at(owner, path) if path else (owner, None)
            for _, holder, keys, value in lying_in(follow(owner, path)):
                place = (id(around), first, *keys) if holder is None else (id(holder), *keys)
                places[id(value)].add(place)
                if id(value) in old and len(places[id(value)]) > 1:
                    self._held[id(value)] = value

    def holds(self, value: object) -> bool:
        """True for an aliased object."""
        return id(value) in self._held

    def add(self, text: str, value: object, source: Source, where: SourceLine | None) -> None:
        """Note an aliased container of which nothing else may be read, with its source."""
        owner, path = source
        kept = owner if isinstance(owner, Cell) or is_container(owner) else Same(owner)
        name = Name(text, lambda: None, path, False, Same(value), shown(value), where)
        self._named.setdefault((id(owner), path), (kept, replace(name, aspect=Aspect.IDENTITY)))
        self.hold(value)

    def named(
        self, functions: Sequence[FunctionType], was_before: Callable[[object], bool]
    ) -> Iterator[Touched]:
        """Identity guards of the aliases, but for places that the step reassigns."""
        for kept, name in self._named.values():
            owner = kept() if isinstance(kept, Same) else kept
            for one in owner.within(functions) if isinstance(owner, Cell) else [owner]:
                value = follow(one, name.path)
                if Same(value) == name.found and was_before(one) and was_before(value):
                    yield Touched(replace(name, owner=Same(one)), True, None, True)

    def inside(self, one: Touched, old: KeysView[int]) -> Iterator[Touched]:
        """Identity guards of aliased containers inside a touched place."""
        kept = old & self._held.keys() & set(one.within.values())
        now = containers_within(follow(one.name.owner(), one.name.path)) if kept else {}
        for keys, found in now.items():
            path = (*one.name.path, *((By.ITEM, key) for key in keys))
            if path and found in kept and one.within.get(keys) == found:
                name = replace(one.name, path=path, found=Same(self._held[found]), deep=False)
                name = replace(name, aspect=Aspect.IDENTITY, moved=False)
                yield one._replace(name=name, read=True, container=None, counted=False)
