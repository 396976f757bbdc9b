"""Tensors that a step keeps in closures, attributes and containers from call to call."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ..._torch.modules import FLAT_WEIGHTS, is_of_module
from ...guards import ABSENT
from ...guards.looks import Same, is_container, look, shown
from ...guards.names import CONTENT, By, Name, attribute
from ...ir.program import Role
from ...live.discovery import Entries
from ...live.step import Leaf
from ...structure import Unfit
from ..tape.watch import Change
from .host import Assigned
from .kept import (
    Appended,
    Behind,
    Bounded,
    Filled,
    Item,
    Pair,
    Pinned,
    Rebound,
    TensorAt,
    ValueAtEntry,
    described,
    first_places,
    held_at,
    hidden_in,
    tensors_inside,
    where,
)
from .moved import MANY, appended, equal, items_of, keys_moved, plain_in, put_behind, same_items
from .sources import Sources
from .titles import Titles
from .trees import Fixed, Trees

_GROWING = (list, deque)
_HOLDS = (dict, list, deque)


class _Change(NamedTuple):
    """A place that holds something else after the step, with tensors in one of the two."""

    place: Item
    before: object
    now: object


class Carried:
    """What one step keeps in containers: what lay there before it, and what lies there after it.

    Args:
        containers: (name, dict, list or cell) that it may keep tensors in.
        rebound: names under which others put another tensor between calls.
    """

    def __init__(
        self, containers: Sequence[tuple[str, object]], rebound: Sequence[Name] = ()
    ) -> None:
        self._containers = _once(containers)
        self._titles = Titles(self._containers)
        self._rebound = rebound
        self._taken: set[object] = set()
        self.together: list[Pair] = []
        """Places that held one tensor, or an argument."""
        containers = self._containers
        self._known = {id(holder) for _, holder in containers if not isinstance(holder, Entries)}
        self._some = {
            (id(holder.values), name)
            for _, holder in containers
            if isinstance(holder, Entries)
            for name in holder.names
        }
        self._contents = [
            (holder, holder.copy()) for _, holder in containers if isinstance(holder, _HOLDS)
        ]
        self._lists = {
            id(holder): list(holder) for _, holder in containers if isinstance(holder, _GROWING)
        }
        self._many = {id(holder): before for holder, before in self._contents if len(before) > MANY}
        self._before = {place.key: (place, value) for place, value in self._entries()}
        self._objects = {
            id(value)
            for _, value in self._before.values()
            if not isinstance(value, torch.Tensor) and not is_container(value)
        }
        few = (holder for _, holder in containers if id(holder) not in self._many)
        self._plain = {id(holder): plain_in(holder) for holder in few}
        self._moved: list[_Change] | None = None

    @property
    def values(self) -> list[object]:
        """All that lay in the containers before the step."""
        return [value for _, value in self._before.values()]

    def takes(self, name: Name) -> bool:
        """True for a name whose tensor is an argument of the program."""
        return name.key in self._taken

    def knows(self, holder: object, key: object = None) -> bool:
        """True when what lies in ``holder`` is seen to here, or what lies under ``key``."""
        return id(holder) in self._known or (id(holder), key) in self._some

    def replaces(self, holder: object, key: object) -> bool:
        """True where the step has put another object."""
        place = Item("", holder, None if isinstance(holder, types.CellType) else key)
        before = self._before.get(place.key)
        return before is not None and held_at(place) is not before[1]

    def writes(self, holder: object, on_the_way: Iterable[tuple[object, object]]) -> bool:
        """True when what lies in ``holder``, or at one of these places, is written by replays."""
        moved = any(change.place.holder is holder for change in self.changes())
        return moved or any(self.replaces(held, key) for held, key in on_the_way)

    def sees_to(self, owner: object, name: str) -> bool:
        """True for an attribute that is written by replays, or whose tensor is an argument."""
        place = (id(vars(owner)), name)
        moved = any(change.place.key == place for change in self.changes())
        return moved or self.takes(attribute(owner, name, None))

    @staticmethod
    def can_carry(container: object) -> bool:
        """True for a container in which single places can be written."""
        return isinstance(container, _HOLDS)

    def put_back(self) -> None:
        """All is as before the step."""
        for place, value in self._before.values():
            if isinstance(place.holder, types.CellType) or place.key[:2] in self._some:
                place.write(value)
        for holder, before in self._contents:
            if same_items(holder, before):
                continue
            holder.clear()
            holder.update(before) if isinstance(holder, dict) else holder.extend(before)

    def _entries(self) -> Iterator[tuple[Item, object]]:
        for _, container in self._containers:
            holder = container.values if isinstance(container, Entries) else container
            for item in self._items(container):
                if item in FLAT_WEIGHTS and is_of_module(holder):
                    continue
                place = Item(self._titles.of(container, item), holder, item)
                try:
                    value = place.read()
                except (KeyError, IndexError, ValueError):
                    continue
                yield place, value

    def changes(self) -> list[_Change]:
        """Where the step puts something else, with tensors in it or in what was there."""
        if self._moved is None:
            self._moved = []
            self._before.update(self._was_moved())
            for place, now in self._entries():
                before = self._before.get(place.key, (place, None))[1]
                if now is before:
                    continue
                if tensors_inside(before) or tensors_inside(now) or hidden_in(now):
                    self._moved.append(_Change(place, before, now))
        return self._moved

    def _was_moved(self) -> Iterator[tuple[tuple[object, ...], tuple[Item, object]]]:
        """What lay in large containers where something else lies now."""
        for _, holder in self._containers:
            was = items_of(self._many.get(id(holder), ()))
            for key in self._items(holder) if was and not self._grows(holder) else ():
                place = Item(self._titles.of(holder, key), holder, key)
                if key in was:
                    yield place.key, (place, was[key])

    def assigned_tensors(self) -> list[torch.Tensor]:
        """What the places that the step gives something else hold now."""
        return [tensor for _, _, now in self.changes() for tensor in tensors_inside(now)]

    def inputs(
        self,
        free: Sequence[tuple[Leaf, int]],
        given: Sequence[torch.Tensor],
        pinned: Sequence[torch.Tensor],
    ) -> list[tuple[Leaf, int]]:
        """``free`` with what lay at a place that has something else now as arguments.

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

    def assigned(self, sources: Sources, trees: Trees) -> tuple[list[Assigned], str]:
        """What the step assigns, and why no program can; empty when one can.

        Args:
            sources: where tensors come from.
            trees: to make objects again.
        """
        found = []
        left = {place.key for place, _ in self._entries()}
        for key, (place, before) in self._before.items():
            growing = isinstance(place.holder, _GROWING)
            if key not in left and not growing and tensors_inside(before):
                return [], f"{place.name} is taken away"
        why = self._why_not_rewritten()
        if why:
            return [], why
        for place, _, now in self.changes():
            for tensor in tensors_inside(now):
                if sources.owned(tensor):
                    return [], f"{place.name} is given a tensor that was there before"
            to: Item | Appended = place
            if isinstance(place.holder, _GROWING):
                to = self._appended(place) or place
                if to is place and self._is_shifted(place):
                    continue
            try:
                old = id(now) in self._objects
                tree = Fixed(now, Same(now)) if old else trees.of(now, partial(sources.of, to.name))
                found.append(Assigned(to, tree))
            except Unfit as unfit:
                return [], f"{place.name} {unfit.what}"
        return [*found, *self._reordered()], ""

    def _why_not_rewritten(self) -> str:
        for name, holder in self._containers:
            if isinstance(holder, _GROWING) and self._is_rewritten(holder):
                return f"what is in {name} is replaced, or taken away"
        return ""

    def _reordered(self) -> Iterator[Assigned]:
        for holder, before in self._contents:
            behind = put_behind(before, holder) if isinstance(before, dict) else ()
            if behind and isinstance(holder, dict):
                yield Assigned(Behind(holder), Fixed(behind, behind))

    def _is_rewritten(self, holder: Any) -> bool:
        """True for a list of tensors of which some are taken away."""
        before, now = self._lists[id(holder)], list(holder)
        if len(before) == len(now) or (id(holder) not in self._many and len(before) < len(now)):
            return False
        if not any(isinstance(item, torch.Tensor) for item in (*before, *now)):
            return False
        return appended(before, holder) == 0 and not same_items(before, now)

    @property
    def entry(self) -> tuple[ValueAtEntry | Bounded | Filled, ...]:
        """What must be in places that the step gives something else: it may go by that."""
        changes = [
            (place, before)
            for place, before, _ in self.changes()
            if not (isinstance(place.holder, _GROWING) and self._appended(place))
        ]
        filled = {
            id(place.holder): Filled(place.holder, first_places(self._lists[id(place.holder)]))
            for place, _ in changes
            if isinstance(place.holder, _GROWING) and not self._is_shifted(place)
        }
        entries = [ValueAtEntry(place, described(before)) for place, before in changes]
        return (*entries, *self._bounded(), *filled.values())

    def _bounded(self) -> Iterator[Bounded]:
        for _, holder in self._containers:
            if isinstance(holder, deque) and holder.maxlen is not None:
                before = self._lists[id(holder)]
                new = appended(before, holder)
                if new:
                    yield Bounded(holder, new, len(before) + new - len(holder))

    def _appended(self, place: Item) -> Appended | None:
        """The end of its list, where the step has appended to it; None where it has not."""
        before = self._lists[id(place.holder)]
        number = place.item - (len(place.holder) - appended(before, place.holder))
        name = place.name.rpartition(".")[0]
        return Appended(name, place.holder, number) if number >= 0 else None

    def _is_shifted(self, place: Item) -> bool:
        """True in a full deque that the step appends to: that moves all that is in it."""
        holder, before = place.holder, self._lists[id(place.holder)]
        new = appended(before, holder)
        at = place.item + len(before) + new - len(holder)
        return new > 0 and at < len(before) and before[at] is held_at(place)

    def _items(self, holder: Any) -> Sequence[object]:
        if isinstance(holder, types.CellType):
            return [None]
        if isinstance(holder, Entries):
            return holder.names
        before = self._many.get(id(holder))
        if before is None:
            return list(holder) if isinstance(holder, dict) else range(len(holder))
        new = self._grows(holder)
        return range(len(holder) - new, len(holder)) if new else keys_moved(before, holder)

    def _grows(self, holder: object) -> int:
        """How many were appended."""
        return 0 if isinstance(holder, dict) else appended(self._lists[id(holder)], holder)

    def counted(self, seen_to: Callable[[object, object], bool]) -> list[tuple[Change, Name]]:
        """Plain values that the step has changed, and no program; but for those ``seen_to``.

        With the names of their places.
        """
        found = []
        tensors = {place.key for place, _, _ in self.changes()}
        for name, holder in self._containers:
            held = holder.values if isinstance(holder, Entries) else holder
            many = self._many.get(id(holder))
            keys = None if many is None else keys_moved(many, holder)
            before = self._plain.get(id(holder), {}) if many is None else plain_in(many, keys)
            now = plain_in(holder, keys)
            for item in {**before, **now}:
                kept = item in before and item in now
                place = (id(held), None if isinstance(held, types.CellType) else item)
                if (kept and equal(before[item], now[item])) or place in tensors:
                    continue
                if not seen_to(held, place[1]):
                    change = Change(name, str(item), False, None, before.get(item, ABSENT))
                    found.append((change, _named(name, held, item, now.get(item, ABSENT))))
        return found


def _named(title: str, holder: Any, item: object, value: object) -> Name:
    """The name of what lies in a container."""
    in_cell = isinstance(holder, types.CellType)
    path = CONTENT if in_cell else ((By.ITEM, item),)
    words = title if in_cell else f"{title}[{item!r}]"
    return Name(words, Same(holder), path, True, look(value), shown(value), None)


def _once(containers: Sequence[tuple[str, object]]) -> list[tuple[str, Any]]:
    """Each container under the first of its names."""
    found: dict[object, tuple[str, object]] = {}
    for name, holder in containers:
        some = (id(holder.values), *holder.names) if isinstance(holder, Entries) else id(holder)
        found.setdefault(some, (name, holder))
    return list(found.values())
