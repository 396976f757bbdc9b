"""Tensors that a step stores in closures, attributes and containers between calls."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ..._torch.modules import FLAT_WEIGHTS, is_of_module
from ...effects.entry_state import (
    Appended,
    Bounded,
    Filled,
    Item,
    MovedToEnd,
    Pair,
    Pinned,
    Rebound,
    TensorAt,
    ValueAtEntry,
    described,
    first_places,
    hidden_in,
    tensors_inside,
    where,
)
from ...effects.side_effects import Assigned
from ...effects.trees import Fixed, Trees
from ...guards.aspects import Same, count, elements, is_container
from ...guards.names import Name, attribute
from ...ir.program import Role
from ...live.discovery import Entries
from ...live.snapshot import refill
from ...live.step import Leaf
from ...objects import is_a
from ...structure import Unfit
from .moved import MANY, appended, is_full, items_of, keys_moved, move_to_end, same_items
from .sources import Sources
from .titles import Titles

_GROWING = (list, deque)
_HOLDS = (dict, list, deque)


class _Change(NamedTuple):
    """A place with another value after the step, where one of the two holds tensors."""

    place: Item
    before: object
    now: object


class _Kept(NamedTuple):
    """A container in which the step may store tensors."""

    name: str
    container: Any
    """A dict, list or closure's variable, or some places of a dict."""
    holder: Any
    """The object that has the places."""
    before: dict[object, object]
    """Its items before the step."""

    @classmethod
    def of(cls, name: str, container: Any) -> _Kept:
        """The record of a container, with its present items."""
        holder = container.values if is_a(container, Entries) else container
        return cls(name, container, holder, items_of(container))

    @property
    def is_whole(self) -> bool:
        """True where all items are covered, not some keys of a dict alone."""
        return not is_a(self.container, Entries)

    @property
    def grows(self) -> int:
        """The number of appended items."""
        if not isinstance(self.holder, _GROWING):
            return 0
        before, now = list(self.before.values()), elements(self.holder)
        return appended(before, now, full=is_full(self.holder))

    def put_back(self) -> None:
        """Restore the items from before the step."""
        holder, before = self.holder, self.before
        if not isinstance(holder, _HOLDS) or not self.is_whole:
            for key, value in before.items():
                Item("", holder, key).write(value)
        elif not same_items(items_of(holder), before):
            refill(holder, list(before.items() if is_a(holder, dict) else before.values()))


class StoredTensors:
    """The tensors in containers before and after one step.

    Args:
        containers: (name, dict, list or cell) in which the step may store tensors.
        rebound: names whose tensor is replaced between calls.
    """

    def __init__(
        self, containers: Sequence[tuple[str, object]], rebound: Sequence[Name] = ()
    ) -> None:
        once = _once(containers)
        self._titles = Titles(once)
        self._kept = [_Kept.of(*one) for one in once]
        self._rebound = rebound
        self._taken: set[object] = set()
        self.together: list[Pair] = []
        """Alias guards between places, or a place and an argument."""
        self._whole = {id(one.holder): one for one in self._kept if one.is_whole}
        self._before: dict[int, dict[object, object]] = {}
        for one in self._kept:
            self._before.setdefault(id(one.holder), {}).update(one.before)
        self._some = {
            (id(one.holder), name)
            for one in self._kept
            if not one.is_whole
            for name in one.container.names
        }
        self._moved: list[_Change] | None = None

    @property
    def values(self) -> list[object]:
        """The values in the containers before the step, large containers excepted."""
        few = (one.before for one in self._kept if len(one.before) <= MANY)
        return [value for before in few for value in before.values()]

    def takes(self, name: Name) -> bool:
        """True for a name whose tensor is an argument of the program."""
        return name.key in self._taken

    def knows(self, holder: object, key: object = None) -> bool:
        """True when all of ``holder``, or its item under ``key``, is covered here."""
        return id(holder) in self._whole or (id(holder), key) in self._some

    def replaces(self, holder: object, key: object) -> bool:
        """True where the step replaces the object."""
        place = Item("", holder, None if isinstance(holder, types.CellType) else key)
        before = self._before.get(id(holder), {})
        return place.item in before and place.read() is not before[place.item]

    def writes(self, holder: object, on_the_way: Iterable[tuple[object, object]]) -> bool:
        """True when replays write ``holder``, or one of these places."""
        moved = any(change.place.holder is holder for change in self.changes())
        return moved or any(self.replaces(held, key) for held, key in on_the_way)

    def sees_to(self, owner: object, name: str) -> bool:
        """True for an attribute that replays write, or whose tensor is an argument."""
        place = (id(vars(owner)), name)
        moved = any(change.place.key == place for change in self.changes())
        return moved or self.takes(attribute(owner, name, None))

    @staticmethod
    def can_carry(container: object) -> bool:
        """True for a container in which single places can be written."""
        return isinstance(container, _HOLDS)

    def put_back(self) -> None:
        """Restore all containers."""
        for one in self._kept:
            one.put_back()

    def changes(self) -> list[_Change]:
        """The places that the step reassigns, where tensors are involved."""
        if self._moved is None:
            self._moved = [
                change
                for one in self._kept
                for change in self._changes_in(one)
                if any(map(tensors_inside, change[1:])) or hidden_in(change.now)
            ]
        return self._moved

    def _changes_in(self, one: _Kept) -> Iterator[_Change]:
        before, now = one.before, items_of(one.container)
        keys: Sequence[object] = keys_moved(before, now)
        if len(before) > MANY and (new := one.grows):
            before, keys = {}, range(len(now) - new, len(now))
        for key in keys:
            if key in now and not (key in FLAT_WEIGHTS and is_of_module(one.holder)):
                place = Item(self._titles.of(one.container, key), one.holder, key)
                yield _Change(place, before.get(key), now[key])

    def assigned_tensors(self) -> list[torch.Tensor]:
        """The tensors in the new values of reassigned places."""
        return [tensor for _, _, now in self.changes() for tensor in tensors_inside(now)]

    def inputs(
        self,
        free: Sequence[tuple[Leaf, int]],
        given: Sequence[torch.Tensor],
        pinned: Sequence[torch.Tensor],
    ) -> list[tuple[Leaf, int]]:
        """``free`` with the earlier tensors of reassigned places as arguments.

        Args:
            given: the arguments of the call.
            pinned: tensors that a name leads to as well, which no call may find replaced.
        """
        fixed = {where(tensor): tensor for tensor in pinned}
        parts: dict[tuple[object, ...], Leaf] = {}
        arguments = {where(tensor): position for position, tensor in enumerate(given)}
        for place, before, _ in self.changes():
            for position, tensor in enumerate(tensors_inside(before)):
                name = (
                    place.name if isinstance(before, torch.Tensor) else f"{place.name}.{position}"
                )
                root, spot = TensorAt(place, position), where(tensor)
                if spot in fixed and spot not in arguments:
                    self.together.append(Pair(root, Pinned(fixed[spot])))
                    continue
                leaf = parts.setdefault(spot, Leaf(name, Role.INPUT, root, ("value",), tensor))
                if spot in arguments:
                    self.together.append(Pair(root, arguments[spot]))
                elif leaf.root is not root:
                    self.together.append(Pair(root, leaf.root))
        bound = {}
        titles = {leaf.fqn for leaf in parts.values()}
        for known in self._rebound:
            there = Rebound(known)
            tensor = there["value"]
            if tensor is not None and where(tensor) not in parts:
                title = known.shown if known.shown not in titles else f"{known.shown} {len(titles)}"
                titles.add(title)
                leaf = Leaf(title, Role.INPUT, there, ("value",), tensor)
                parts[where(tensor)] = leaf
                bound[id(leaf)] = known.key
        found = [
            (parts.get(where(leaf.value), leaf) if leaf.role is Role.FREE else leaf, index)
            for leaf, index in free
        ]
        # Two names that lead to one tensor may not do so in the next call: one of them is guarded.
        self._taken = {bound[id(leaf)] for leaf, _ in found if id(leaf) in bound}
        return found

    def assigned(self, sources: Sources, trees: Trees) -> Iterator[Assigned]:
        """The assignments of the step. Raises Unfit where no program can make one.

        Args:
            sources: where tensors come from.
            trees: to make objects again.
        """
        if why := next(filter(None, map(self._why_not_rewritten, self._kept)), ""):
            raise Unfit(why)
        lay = (value for before in self._before.values() for value in before.values())
        objects = {id(value) for value in lay if not is_container(value)}
        for place, _, now in self.changes():
            if any(map(sources.owned, tensors_inside(now))):
                raise Unfit(f"{place.name} is given a tensor that was there before")
            to = self._appended(place) or place
            if to is place and self._is_shifted(place):
                continue
            try:
                old = id(now) in objects and not is_a(now, torch.Tensor)
                tree = Fixed(now, Same(now)) if old else trees.of(now, partial(sources.of, to.name))
            except Unfit as unfit:
                raise Unfit(f"{place.name} {unfit.what}") from None
            yield Assigned(to, tree)
        yield from self._reordered()

    def _why_not_rewritten(self, one: _Kept) -> str:
        before, now = one.before, items_of(one.container)
        if is_a(one.holder, _GROWING):
            fewer = len(before) > len(now) or (len(before) > MANY and len(before) != len(now))
            held = (*before.values(), *now.values()) if fewer and not one.grows else ()
            tensors = any(is_a(item, torch.Tensor) for item in held)
            return f"what is in {one.name} is replaced, or taken away" if tensors else ""
        gone = (key for key in before if key not in now and tensors_inside(before[key]))
        return next((f"{self._titles.of(one.container, key)} is taken away" for key in gone), "")

    def _reordered(self) -> Iterator[Assigned]:
        for one in self._kept:
            whole = one.is_whole and is_a(one.holder, dict)
            referents = move_to_end(one.before, one.holder) if whole else ()
            if referents:
                yield Assigned(MovedToEnd(one.holder), Fixed(referents, referents))

    @property
    def entry(self) -> tuple[ValueAtEntry | Bounded | Filled, ...]:
        """Guards on the entry values of reassigned places."""
        changes = [change for change in self.changes() if not self._appended(change.place)]
        filled = {
            id(place.holder): Filled(place.holder, first_places(self._list(place)))
            for place, _, _ in changes
            if isinstance(place.holder, _GROWING) and not self._is_shifted(place)
        }
        entries = [ValueAtEntry(place, described(before)) for place, before, _ in changes]
        return (*entries, *self._bounded(), *filled.values())

    def _bounded(self) -> Iterator[Bounded]:
        for one in self._kept:
            if is_a(one.holder, deque) and one.holder.maxlen is not None and one.grows:
                dropped = len(one.before) + one.grows - count(one.holder)
                yield Bounded(one.holder, one.grows, dropped)

    def _list(self, place: Item) -> list[object]:
        """The earlier items of the list or deque of a place."""
        return list(self._whole[id(place.holder)].before.values())

    def _appended(self, place: Item) -> Appended | None:
        """The end of its list, where the step has appended to it; None where it has not."""
        if not isinstance(place.holder, _GROWING):
            return None
        number = place.item - (count(place.holder) - self._whole[id(place.holder)].grows)
        name = place.name.rpartition(".")[0]
        return Appended(name, place.holder, number) if number >= 0 else None

    def _is_shifted(self, place: Item) -> bool:
        """True in a full deque to which the step appends, which shifts all items."""
        if not isinstance(place.holder, _GROWING):
            return False
        holder, before = place.holder, self._list(place)
        new = self._whole[id(holder)].grows
        at = place.item + len(before) + new - count(holder)
        return new > 0 and at < len(before) and before[at] is place.read()


def _once(containers: Sequence[tuple[str, object]]) -> list[tuple[str, Any]]:
    """Each container under the first of its names."""
    found: dict[object, tuple[str, object]] = {}
    for name, holder in containers:
        some = (id(holder.values), *holder.names) if is_a(holder, Entries) else id(holder)
        found.setdefault(some, (name, holder))
    return list(found.values())
