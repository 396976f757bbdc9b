"""What a step reads and writes by name, as it was when it was met, and what has become of it."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ..._torch import storage_id
from ...errors import SourceLine
from ...guards import ABSENT
from ...guards.looks import (
    Aspect,
    Never,
    Same,
    alike,
    is_buffer,
    is_container,
    items_in,
    look,
    shown,
    with_kinds,
)
from ...guards.names import CONTENT, By, Name, Path, follow
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.step import Leaf
from ..chains.chains import Use
from ..chains.inside import containers_within, held_by, lay_at
from ..chains.items import Items
from ..chains.resolve import Source
from ..chains.touched import Cell, RowKey, Touched, idle, in_cell, look_at, settings, unmoved_in
from ..host.elsewhere import Elsewhere

_LEAVES = frozenset({bool, int, float, complex, str, bytes, type(None)})
_Box = tuple[object, list[tuple[RowKey, Name]]]
"""(what names begin at, the rows and names of what lies there)."""


class Meeting(NamedTuple):
    """A value that a chain has led to."""

    text: str
    value: object
    use: Use
    where: SourceLine | None
    deep: bool = True


class _Lying(NamedTuple):
    """What lies at a place that is met."""

    around: list[tuple[RowKey, bool]]
    """What the step has changed on the way there, from `Ledger._moved_around`."""
    within: dict[tuple[object, ...], int] | None
    like: object
    """The look at what it is like; None for what has no other look than its own."""
    plain: bool
    """True for a container of numbers that are Python's own, of strings and such containers."""


class Ledger:
    """What one recording meets by name: how it was first, and how it is now.

    Args:
        guarded: true for an object whose own attributes others watch.
        given: the identities of the objects among the arguments.
        wrote: true for an attribute of such an object that the step has written, unread.
    """

    def __init__(
        self,
        guarded: Callable[[object], bool],
        given: set[int],
        wrote: Callable[[object, str], bool] = lambda owner, name: False,
    ) -> None:
        self._guarded, self._wrote = guarded, wrote
        self._given = given
        self._names: dict[RowKey, tuple[Any, Name]] = {}
        """All that was read, and what the step wrote, as it was before."""
        self._reads: set[RowKey] = set()
        self._perhaps: set[RowKey] = set()
        """What a library's code may have read."""
        self._own: set[RowKey] = set()
        """What the step wrote before it read it."""
        self._stored: set[RowKey] = set()
        self._replaced: set[RowKey] = set()
        """What the step may have replaced, whether it reads it or not."""
        self._containers: dict[RowKey, object] = {}
        self._alike: dict[RowKey, object] = {}
        """What tensors, and containers of tensors, were like."""
        self._items: dict[tuple[int, Path], Items] = {}
        """Where which objects lie in a container tells whether it has changed."""
        self._within: dict[RowKey, dict[tuple[object, ...], int]] = {}
        """The containers in each value, as they were."""
        self._outside: dict[int, object] = {}
        """By identity, what was there before the step, as far as names have led there."""
        self._depths: dict[int, int] = {}
        """How many containers deep what is in that was looked at."""
        self._outer: set[RowKey] = set()
        self.old: dict[int, object] = {}
        """By identity, what was there before the step, once that is over."""
        self._cells: dict[tuple[str, object], Cell] = {}
        self._lengths: set[RowKey] = set()
        """Lists of which the step reads what it has put there, by its number."""
        self._elsewhere = Elsewhere()
        self._identified: set[tuple[int, Path]] = set()
        """Places of numbers of which the step asks which object they are."""
        self._compared: dict[int, object] = {}
        """By identity, tensors and containers of which the step asks which object they are."""

    def cell(self, name: str, value: object) -> Cell:
        """The variable of a function around, by what it holds."""
        found = in_cell(value)
        return self._cells.setdefault((name, found), Cell(name, found))

    def was_there(self, value: object) -> bool:
        """True for what is known to have been there before the step."""
        return id(value) in self._outside

    def mark(self, value: object, depth: int = 3) -> None:
        """It was there before the step, and what is in it."""
        if type(value) in _LEAVES or self._depths.get(id(value), -1) >= depth:
            return
        self._outside[id(value)] = value
        self._depths[id(value)] = depth
        for item in held_by(value) if depth else ():
            self.mark(item, depth - 1)

    @property
    def compared(self) -> frozenset[int]:
        """The identities of what the step compares by ``is``."""
        return frozenset(self._compared)

    def which(self, value: object, use: Use) -> None:
        """What becomes of it may go by which object it is."""
        asked = use is Use.COMPARED or use is Use.AMONG
        if asked and (is_container(value) or isinstance(value, torch.Tensor)):
            self._compared[id(value)] = value
        elif use is Use.KEPT:
            self._elsewhere.hold(value)

    def identify(self, value: object, source: Source) -> None:
        """The step asks which object it is that lies there."""
        if type(value) in (int, float):
            self._identified.add((id(source.owner), source.path))

    def keep(self, meeting: Meeting, source: Source) -> None:
        """A container that lies there is put into another place as well: it has to be that one."""
        key = (id(source.owner), source.path, True)
        if source.path and self.is_outside(source.owner) and key not in self._own:
            self.mark(meeting.value)
            self._elsewhere.add(meeting.text, meeting.value, source, meeting.where)

    def add(self, meeting: Meeting, source: Source, *, perhaps: bool = False) -> RowKey:
        """Something is read, or about to be written, that lies there; gives its key.

        ``perhaps``: a library's code may have read it. What the step moves it has not.
        """
        use = meeting.use
        if isinstance(meeting.value, torch.Tensor):
            source = self._as_before(meeting.value, source)
        key = (id(source.owner), source.path, meeting.deep)
        if key not in self._names:
            self.notice(meeting, source)
        if self.is_outside(source.owner):
            self._outer.add(key)
            if key not in self._own:
                self.mark(meeting.value)
        if use < Use.NAMED:
            self._replaced.add(key)
            if use is Use.STORED:
                self._stored.add(key)
            elif use is Use.CLEARED and key not in self._reads:
                self._own.add(key)
        elif key not in self._own and perhaps and key not in self._reads:
            self._perhaps.add(key)
        elif key not in self._own:
            self._reads.add(key)
        return key

    def notice(self, meeting: Meeting, source: Source) -> None:
        """How what lies there is now: the step may write into it, and read or fill it later."""
        place = id(source.owner), source.path
        new = [deep for deep in (True, False) if (*place, deep) not in self._names]
        if new:
            lies = self._lying(meeting.value, source)
            for deep in new:
                self._meet((*place, deep), meeting._replace(deep=deep), source, lies)

    def written(self, key: RowKey, use: Use, now: Callable[[str], object]) -> None:
        """A line is over that may have stored something there: what it reads next is of its own.

        Args:
            now: what a variable of the function that runs holds; `ABSENT` for none.
        """
        moved = self._is_another(key, now)
        if moved and use in (Use.STORED, Use.PERHAPS):
            self._stored.add(key)
            if key not in self._reads:
                self._own.add(key)
        elif use is Use.PERHAPS and key not in self._own:
            self._reads.add(key)  # whether or not a branch put it there, it is this

    def _is_another(self, key: RowKey, now: Callable[[str], object]) -> bool:
        owner, name = self._names[key]
        if not isinstance(owner, Cell):
            held = owner if _is_held(owner) else owner()
            return bool(name.look(follow(held, name.path)) != name.found)
        value = now(owner.name)
        if name.path != CONTENT or value is ABSENT:
            return False
        owner.last = in_cell(value)
        self._cells[owner.name, owner.last] = owner
        return bool(name.look(value) != name.found)

    def moved(self) -> set[RowKey]:
        """The places that were written and hold something else now; variables, whatever they do."""

        def moves(key: RowKey) -> bool:
            owner = self._names[key][0]
            made = is_container(owner) and key not in self._outer
            is_another = isinstance(owner, Cell) or self._is_another(key, lambda name: ABSENT)
            return is_another and not made

        return {key for key in self._replaced if moves(key)}

    def _lying(self, value: object, source: Source) -> _Lying:
        """What all of a place's rows have in common."""
        around = list(self._moved_around(*source, value))
        listed, items = is_container(value), Items.of(value)
        if items is not None:
            self._items[id(source.owner), source.path] = items
        within = containers_within(value) if listed or is_buffer(value) else None
        like: object = None
        if listed or isinstance(value, torch.Tensor):
            like = alike(value) if items is None else look(value)  # no tensor lies in it
        return _Lying(around, within, like, items is not None and items.plain)

    def _meet(self, key: RowKey, meeting: Meeting, source: Source, lies: _Lying) -> None:
        owner, path = source
        value = meeting.value
        found, words = look_at(value, meeting.use, deep=meeting.deep), shown(value)
        name = Name(meeting.text, lambda: None, path, meeting.deep, found, words, meeting.where)
        if not lies.plain and (kinds := with_kinds(found)) is not found:
            name = replace(name, found=kinds, aspect=Aspect.KINDS)
        if self._is_made(owner, path):
            self._own.add(key)
        self._names[key] = (owner if _is_held(owner) else Same(owner), name)
        for around, replaced in lies.around:
            self._own.add(key)  # it is what the step has made of what is around it
            if not (replaced or isinstance(value, torch.Tensor) or self._is_appended(around, path)):
                self._reads.add(around)
                self._outer |= {around} if self.is_outside(owner) else set()
            key_in = path[len(around[1])][1]
            if type(key_in) is int and key_in >= 0:
                self._lengths.add(around)
        unchanging = isinstance(value, (tuple, frozenset))
        if is_buffer(value) or (is_container(value) and not unchanging):
            self._containers[key] = value
        if lies.within is not None:
            self._within[key] = lies.within
        if lies.like is not None:
            self._alike[key] = lies.like

    def _is_made(self, owner: object, path: Path) -> bool:
        """True where the step has written an attribute before anything was read of it."""
        if not path or path[0][0] is not By.OWN or not self._wrote(owner, path[0][1]):
            return False
        first = (id(owner), path[:1], True)
        return first in self._own or first not in self._names

    def is_own(self, source: Source) -> bool:
        """True for a way through what the step itself has put there."""
        owner, path = source
        known = any((id(owner), path[:n], True) in self._own for n in range(1, len(path) + 1))
        return known or self._is_made(owner, path)

    def _moved_around(
        self, owner: object, path: Path, value: object
    ) -> Iterator[tuple[RowKey, bool]]:
        """Containers on the way that the step has changed since it met them, or replaced."""
        for length in range(1, len(path)):
            key = (id(owner), path[:length], True)
            container = self._containers.get(key)
            if container is None:
                continue
            replaced = self._follow(owner, path[:length], container) is not container
            items = self._items.get((id(owner), path[:length]))
            if not replaced and items is not None and items.hold():
                continue
            before = self._names[key][1].found
            if isinstance(value, torch.Tensor) and lay_at(path[length:], before, value):
                continue
            if replaced or self._names[key][1].look(container) != before:
                yield key, replaced

    def _follow(self, owner: object, path: Path, container: object) -> object:
        """What lies there; in a variable of a function around, from the container in it on."""
        if not isinstance(owner, Cell):
            return follow(owner, path)
        held = self._containers.get((id(owner), path[:1], True))
        return container if held is None else follow(held, path[1:])

    def _as_before(self, tensor: torch.Tensor, source: Source) -> Source:
        """Where in a list that the step has changed since then a tensor lay before."""
        around = (id(source.owner), source.path[:-1], True)
        container, item = self._containers.get(around), look(tensor)
        if not isinstance(container, (list, deque)):
            return source
        before = self._names[around][1].found
        items = items_in(before)
        if item not in items or look(container) == before:
            return source
        place, key = items.index(item), source.path[-1][1]
        place -= len(items) if type(key) is int and key < 0 else 0
        return source._replace(path=(*source.path[:-1], (By.ITEM, place)))

    def _is_appended(self, around: RowKey, path: Path) -> bool:
        """True for an item behind all that a list held when the step met it."""
        container, found = self._containers[around], self._names[around][1].found
        before, (_, key) = items_in(found), path[len(around[1])]
        if not isinstance(container, list) or items_in(look(container))[: len(before)] != before:
            return False
        small = isinstance(found[1], tuple)
        return small and type(key) is int and key % len(container) >= len(before)

    def is_outside(self, owner: object) -> bool:
        """True for what a name may begin at: the step has not made it."""
        known = isinstance(owner, (Cell, torch.nn.Module, type)) or id(owner) in self._outside
        return known or self._guarded(owner)

    def ends(self) -> None:
        """The step is over."""
        self.old = dict(self._outside)

    def _was_before(self, owner: object) -> bool:
        known = id(owner) in self.old or isinstance(owner, (Cell, torch.nn.Module, type))
        return owner is not None and known and id(owner) not in self._given

    def pinned(self) -> list[torch.Tensor]:
        """The tensors that names lead to, after the step as before: they are guarded."""
        found = []
        for owner, name in (self._names[key] for key in self._reads & self._outer):
            value = name.found() if isinstance(name.found, Same) else None
            if not isinstance(value, torch.Tensor):
                continue
            held = owner() if isinstance(owner, Same) else owner
            stays = (
                held.holds(value) if isinstance(held, Cell) else follow(held, name.path) is value
            )
            found += [value] if stays else []
        return found

    # --- afterwards -------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """The variables that were met."""
        return list(self._cells.values())

    def finish(
        self,
        leaves: Sequence[tuple[Leaf, int]],
        functions: Sequence[FunctionType],
        returned: object,
    ) -> list[Touched]:
        """What was read and written."""
        inputs = [leaf for leaf, _ in leaves if isinstance(leaf.value, torch.Tensor)]
        lasting = {storage_id(leaf.value) for leaf in inputs if leaf.role is not Role.INPUT}
        met = {storage_id(leaf.value) for leaf in inputs if has_strides(leaf.value)} | lasting
        self._outside.clear()
        self._depths.clear()
        self._items.clear()
        found = [Touched(name, True, None, True) for name in settings(functions)]
        self._outer |= {
            key
            for key, (owner, _) in self._names.items()
            if isinstance(owner, Same) and self._was_before(owner())
        }
        moved = {key for key in self._perhaps if self._is_another(key, lambda name: ABSENT)}
        self._reads |= self._perhaps - moved
        boxes: dict[int, _Box] = {}
        for key, (owner, name) in self._names.items():
            if key not in self._reads and key not in self._replaced:
                continue
            held = owner if _is_held(owner) else owner()
            if isinstance(held, Cell):
                found += [self._touch(key, name, cell) for cell in held.within(functions)]
            elif held is not None:
                boxes.setdefault(id(held), (held, []))[1].append((key, name))
        self._names.clear()
        self._cells.clear()
        owner = held = None
        held_here = Counter(map(id, self._containers.values()))
        for box in boxes.values():
            found += self._of_owner(box, held_here)
        self._containers.clear()
        # What was read later under the same name, the step has put there.
        first: dict[object, Touched] = {}
        for one in found:
            first.setdefault(one.name.key, one)
        touched = first.values()
        self._elsewhere.hold_left([one for one in touched if one.outer], returned, self.old.keys())
        holds = self._elsewhere.holds
        kept = (idle(one, met if one.outer else lasting, holds) for one in touched)
        more = (*self._more(touched, met), *self._elsewhere.named(functions, self._was_before))
        return [one for one in kept if one is not None] + list(more)

    def _more(self, touched: Collection[Touched], met: set[int]) -> Iterator[Touched]:
        """Names of what has to be that very object, or as long as it was."""
        places = {one.place for one in touched if one.read and one.outer}
        for one in touched:
            value = follow(one.name.owner(), one.name.path)
            if one.name.moved and one.container is value and one.place in places:
                places.remove(one.place)
                yield from unmoved_in(one, value, met, self._elsewhere.holds)
            if one.outer and one.length is not None:
                name = replace(one.name, found=one.length, deep=False, aspect=Aspect.LENGTH)
                yield one._replace(name=replace(name, moved=False), read=True, container=None)
            compared = id(value) in self._compared and one.name.path
            if one.outer and not one.name.moved and compared:
                name = replace(one.name, found=Same(value), deep=False, aspect=Aspect.IDENTITY)
                yield one._replace(name=name, container=None)
            if one.outer:
                yield from self._elsewhere.inside(one, self.old.keys())

    def _of_owner(self, box: _Box, held: Counter[int]) -> Iterator[Touched]:
        """A container that only this holds was made by the step."""
        if is_container(box[0]) and sys.getrefcount(box[0]) <= 2 + held[id(box[0])]:
            return
        for key, name in box[1]:
            yield self._touch(key, name, box[0])

    def _touch(self, key: RowKey, name: Name, owner: object) -> Touched:
        value = follow(owner, name.path)
        length = len(name.found[1]) if key in self._lengths else None
        container = self._containers.get(key)
        moved = name.look(value) != name.found
        moved |= container is not None and value is not container  # an equal one
        if (not moved or key in self._reads) and self._moves_about(key, value):
            name = replace(name, found=Never())
        name = replace(name, owner=Same(owner), moved=moved)
        counted = key not in self._stored
        read, old = key in self._reads, id(value) in self.old
        outer = key in self._outer
        compared = isinstance(name.found, Same) and id(name.found()) in self._compared
        like = self._alike.get(key)
        within, known = self._within.get(key, {}), key[:2] in self._identified
        row = read, container, outer, counted, like, compared, length, old, within, known
        return Touched(name, *row)

    def _moves_about(self, key: RowKey, value: object) -> bool:
        """True for containers that the step has put where others were: no copy is that one."""
        before = self._within.get(key, {})
        now = containers_within(value) if is_container(value) else {}
        return any(found in self.old and before.get(at) != found for at, found in now.items())


def _is_held(owner: object) -> bool:
    """True for what no weak reference finds again."""
    return is_container(owner) or isinstance(owner, Cell)
