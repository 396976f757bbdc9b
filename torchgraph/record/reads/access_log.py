"""The log of a step's reads and writes by name: first values, and changes since."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ..._torch import storage_id
from ...errors import SourceLine
from ...guards import ABSENT
from ...guards.aspects import (
    Aspect,
    Never,
    Same,
    alike,
    is_buffer,
    is_container,
    items_in,
    look,
    own,
    shown,
    with_kinds,
)
from ...guards.items import PLAIN, Items
from ...guards.names import CONTENT, By, Name, Path, follow
from ...ir.aliasing import has_strides
from ...ir.program import Role
from ...live.step import Leaf
from ...objects import is_a
from ...structure.kinds import SYMBOLS
from ..chains.chains import Use
from ..chains.inside import containers_within, held_by, lay_at
from ..chains.resolve import Source
from ..chains.touched import Cell, RowKey, Touched, idle, in_cell, look_at, settings, unmoved_in
from ..side_effects.aliases import Aliases
from .shared_dicts import SharedDicts


class Meeting(NamedTuple):
    """A value reached through a chain."""

    text: str
    value: object
    use: Use
    where: SourceLine | None
    deep: bool = True


@dataclass(eq=False)
class Row:
    """A row of the log: one place that is read or written, by content or by identity."""

    owner: Any
    """The start of the name: a container, a `Cell`, or the `Same` of another object."""
    name: Name
    """The name of the place, with its value when first met."""
    container: object
    """The value when first met, if it is a mutable container."""
    within: Mapping[tuple[object, ...], int]
    """The containers inside that value."""
    alike: object
    """The layout of a tensor, or of a container's tensors; None for other values."""
    items: Items | None
    """An identity snapshot, where that suffices to detect changes."""
    own: bool
    """True where the step wrote the place before it read it."""
    read: bool = False
    perhaps: bool = False
    """True where library code may have read the place."""
    stored: bool = False
    replaced: bool = False
    """True where the step may have assigned the place, read or not."""
    outer: bool = False
    """True where the place existed before the step."""
    counted: bool = False
    """True for a list of which the step reads items of its own, by index."""
    identified: bool = False
    """True for a number that the step compares by identity."""


_Box = tuple[object, list[Row]]
"""(the owner of names, the rows of its places)."""


class AccessLog:
    """The log of one recording's reads and writes by name.

    Args:
        guarded: true for an object whose own attributes another watch covers.
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
        self._rows: dict[RowKey, Row] = {}
        self._outside: dict[int, object] = {}
        """By identity, the objects from before the step that names have reached."""
        self._depths: dict[int, int] = {}
        """By identity, the number of nested levels marked as from before the step."""
        self.old: dict[int, object] = {}
        """By identity, the objects from before the step, set at its end."""
        self._cells: dict[tuple[str, object], Cell] = {}
        self._sharing = SharedDicts()
        self._aliases = Aliases()
        self._compared: dict[int, object] = {}
        """By identity, tensors and containers that the step compares by identity."""

    def cell(self, name: str, value: object) -> Cell:
        """The `Cell` of a closure variable, by its content."""
        found = in_cell(value)
        return self._cells.setdefault((name, found), Cell(name, found))

    def was_there(self, value: object) -> bool:
        """True for an object known to predate the step."""
        return id(value) in self._outside

    def mark(self, value: object, depth: int = 3) -> None:
        """Mark an object and its parts as from before the step."""
        if type(value) in PLAIN or self._depths.get(id(value), -1) >= depth:
            return
        self._outside[id(value)] = value
        self._depths[id(value)] = depth
        for item in held_by(value) if depth else ():
            self.mark(item, depth - 1)

    @property
    def compared(self) -> frozenset[int]:
        """The identities of the objects that the step compares by ``is``."""
        return frozenset(self._compared)

    def _shared(self, source: Source) -> Source:
        """The source from the first of the objects that share a ``__dict__``."""
        owner, path = source
        if not path or path[0][0] is not By.OWN or not self.is_outside(owner):
            return source
        return source._replace(owner=self._sharing.first(owner))

    def meets(self, owner: object) -> None:
        """Note a read of an attribute of ``owner``, which may share its ``__dict__``."""
        if self.is_outside(owner):
            self._sharing.first(owner)

    def which(self, value: object, use: Use) -> None:
        """Note a use that depends on object identity."""
        asked = use is Use.COMPARED or use is Use.AMONG
        if asked and (is_container(value) or is_a(value, torch.Tensor)):
            self._compared[id(value)] = value
        elif use is Use.KEPT:
            self._aliases.hold(value)

    def keep(self, meeting: Meeting, source: Source) -> None:
        """Note an alias: the step stores the container in another place as well."""
        source = self._shared(source)
        row = self._rows.get((id(source.owner), source.path, True))
        if source.path and self.is_outside(source.owner) and not (row and row.own):
            self.mark(meeting.value)
            self._aliases.add(meeting.text, meeting.value, source, meeting.where)

    def add(self, meeting: Meeting, source: Source, *, perhaps: bool = False) -> RowKey:
        """Log a read or a coming write of a place; gives the key of its row.

        ``perhaps``: a library's code may have read it. What the step moves it has not.
        """
        use, value = meeting.use, meeting.value
        source = self._shared(source)
        if is_a(value, torch.Tensor):
            source = self._as_before(value, source)
        self.notice(meeting, source)
        key = id(source.owner), source.path, meeting.deep
        row = self._rows[key]
        if self.is_outside(source.owner):
            row.outer = True
            if not (row.own or self._is_new(row, value)):
                self.mark(value)
        if use < Use.NAMED:
            row.replaced = True
            row.stored |= use is Use.STORED
            row.own |= use is Use.CLEARED and not row.read
            row.read |= use is Use.COUNTED and not (row.own or _is_added_to(value))
        elif not row.own:
            row.perhaps |= perhaps
            row.read |= not perhaps
        row.identified |= use is Use.COMPARED and type(value) in (int, float)
        return key

    def _is_new(self, row: Row, value: object) -> bool:
        """True for an object of the step's own that replaced an earlier value.

        All attributes that it has were absent when the step first met them.
        """
        held = own(value) if type(value) not in PLAIN and id(value) not in self._outside else {}
        if not held or is_container(value) or row.name.look(value) == row.name.found:
            return False
        rows = [self._rows.get((id(value), ((By.OWN, key),), True)) for key in held]
        return all(
            one is not None
            and one.name.found == Same(ABSENT)
            and isinstance(one.owner, Same)
            and one.owner() is value
            for one in rows
        )

    def notice(self, meeting: Meeting, source: Source) -> None:
        """Log the present value, before the step can write into it."""
        owner, path = self._shared(source)
        if (id(owner), path, True) in self._rows:
            return
        value, held = meeting.value, owner if _is_held(owner) else Same(owner)
        around = list(self._moved_around(owner, path, value))
        listed, items = is_container(value), Items.of(value)
        changes = is_buffer(value) or (listed and not is_a(value, (tuple, frozenset)))
        within = containers_within(value) if listed or is_buffer(value) else {}
        like: object = None
        if listed or is_a(value, torch.Tensor):
            like = alike(value) if items is None else look(value)  # no tensor lies in it
        own = bool(around) or self._is_made(owner, path)  # part of a container that it changed
        for deep in (True, False):
            found = look_at(value, meeting.use, deep=deep)
            words, where = shown(value), meeting.where
            name = Name(meeting.text, lambda: None, path, deep, found, words, where)
            if not (items and items.plain) and (kinds := with_kinds(found)) is not found:
                name = replace(name, found=kinds, aspect=Aspect.KINDS)
            lay = value if changes else None
            self._rows[id(owner), path, deep] = Row(held, name, lay, within, like, items, own)
        for row, replaced in around:
            if not (replaced or is_a(value, torch.Tensor) or _is_appended(row, path)):
                row.read = True
                row.outer |= self.is_outside(owner)
            key = path[len(row.name.path)][1]
            row.counted |= type(key) is int and key >= 0

    def written(self, key: RowKey, use: Use, now: Callable[[str], object]) -> None:
        """Update a row after a line that may have assigned the place.

        Args:
            now: the present value of a local variable; `ABSENT` for none.
        """
        row = self._rows[key]
        moved = self._is_another(row, now)
        if moved and use in (Use.STORED, Use.PERHAPS):
            row.stored = True
            row.own |= not row.read
        elif use is Use.PERHAPS and not row.own:
            row.read = True  # whether or not a branch put it there, it is this

    def _is_another(self, row: Row, now: Callable[[str], object] = lambda name: ABSENT) -> bool:
        owner, name = row.owner, row.name
        if not isinstance(owner, Cell):
            held = owner if _is_held(owner) else owner()
            return bool(name.look(follow(held, name.path)) != name.found)
        value = now(owner.name)
        if name.path != CONTENT or value is ABSENT:
            return False
        owner.last = in_cell(value)
        self._cells[owner.name, owner.last] = owner
        return bool(name.look(value) != name.found)

    def moved(self) -> set[Row]:
        """The rows of written places whose value differs now; closure variables always."""

        def moves(row: Row) -> bool:
            made = is_container(row.owner) and not row.outer
            return (isinstance(row.owner, Cell) or self._is_another(row)) and not made

        return {row for row in self._rows.values() if row.replaced and moves(row)}

    def _is_made(self, owner: object, path: Path) -> bool:
        """True where the step has written an attribute before anything was read of it."""
        if not path or path[0][0] is not By.OWN or not self._wrote(owner, path[0][1]):
            return False
        first = self._rows.get((id(owner), path[:1], True))
        return first is None or first.own

    def is_own(self, source: Source) -> bool:
        """True for a source through a value that the step itself put there."""
        owner, path = self._shared(source)
        rows = (self._rows.get((id(owner), path[:n], True)) for n in range(1, len(path) + 1))
        return any(row is not None and row.own for row in rows) or self._is_made(owner, path)

    def _moved_around(self, owner: object, path: Path, value: object) -> Iterator[tuple[Row, bool]]:
        """The containers on the path that the step has changed or replaced since."""
        for length in range(1, len(path)):
            row = self._rows.get((id(owner), path[:length], True))
            if row is None or row.container is None:
                continue
            container, before = row.container, row.name.found
            replaced = self._follow(owner, path[:length], container) is not container
            if not replaced and row.items is not None and row.items.hold():
                continue
            if is_a(value, torch.Tensor) and lay_at(path[length:], before, value):
                continue
            if replaced or row.name.look(container) != before:
                yield row, replaced

    def _follow(self, owner: object, path: Path, container: object) -> object:
        """The value of a path; in a closure variable, from its first container on."""
        if not isinstance(owner, Cell):
            return follow(owner, path)
        held = self._rows.get((id(owner), path[:1], True))
        if held is None or held.container is None:
            return container
        return follow(held.container, path[1:])

    def _as_before(self, tensor: torch.Tensor, source: Source) -> Source:
        """The source with a tensor's earlier index in a list that the step has changed."""
        around = self._rows.get((id(source.owner), source.path[:-1], True))
        if around is None or not isinstance(around.container, (list, deque)):
            return source
        before, item = around.name.found, look(tensor)
        items = items_in(before)
        if item not in items or look(around.container) == before:
            return source
        place, key = items.index(item), source.path[-1][1]
        place -= len(items) if type(key) is int and key < 0 else 0
        return source._replace(path=(*source.path[:-1], (By.ITEM, place)))

    def is_outside(self, owner: object) -> bool:
        """True for an object that names may begin at: not made by the step."""
        known = is_a(owner, (Cell, torch.nn.Module, type)) or id(owner) in self._outside
        return known or self._guarded(owner)

    def ends(self) -> None:
        """Note the end of the step."""
        self.old = dict(self._outside)

    def _was_before(self, owner: object) -> bool:
        known = id(owner) in self.old or is_a(owner, (Cell, torch.nn.Module, type))
        return owner is not None and known and id(owner) not in self._given

    def pinned(self) -> list[torch.Tensor]:
        """The tensors whose names lead to them before and after the step, so are guarded."""
        found = []
        for row in self._rows.values():
            name = row.name
            value = name.found() if isinstance(name.found, Same) else None
            if not (row.read and row.outer and is_a(value, torch.Tensor)):
                continue
            held = row.owner() if isinstance(row.owner, Same) else row.owner
            stays = (
                held.holds(value) if isinstance(held, Cell) else follow(held, name.path) is value
            )
            found += [value] if stays else []
        return found

    # --- afterwards -------------------------------------------------------------------------------

    def cells(self) -> list[Cell]:
        """The closure variables in the log."""
        return list(self._cells.values())

    def finish(
        self,
        leaves: Sequence[tuple[Leaf, int]],
        functions: Sequence[FunctionType],
        returned: object,
    ) -> list[Touched]:
        """The places that were read and written."""
        inputs = [leaf for leaf, _ in leaves if is_a(leaf.value, torch.Tensor)]
        lasting = {storage_id(leaf.value) for leaf in inputs if leaf.role is not Role.INPUT}
        met = {storage_id(leaf.value) for leaf in inputs if has_strides(leaf.value)} | lasting
        self._outside.clear()
        self._depths.clear()
        always = [*settings(functions), *self._sharing.names()]
        self._sharing.clear()
        found = [Touched(name, True, None, True) for name in always]
        boxes: dict[int, _Box] = {}
        for row in self._rows.values():
            row.items = None
            owner = row.owner
            row.outer |= is_a(owner, Same) and self._was_before(owner())
            row.read |= row.perhaps and not self._is_another(row)
            held = owner() if is_a(owner, Same) else owner
            if not (row.read or row.replaced):
                pass
            elif is_a(held, Cell):
                found += [self._touch(row, cell) for cell in held.within(functions)]
            elif held is not None:
                boxes.setdefault(id(held), (held, []))[1].append(row)
        for row in self._rows.values():
            row.owner = None
        self._cells.clear()
        owner = held = None
        held_here = Counter(id(row.container) for row in self._rows.values())
        for box in boxes.values():
            found += self._of_owner(box, held_here)
        self._rows.clear()
        # Later reads under the same name are of the step's own value.
        first: dict[object, Touched] = {}
        for one in found:
            first.setdefault(one.name.key, one)
        touched = first.values()
        self._aliases.hold_left([one for one in touched if one.outer], returned, self.old.keys())
        holds = self._aliases.holds
        kept = (idle(one, met if one.outer else lasting, holds) for one in touched)
        more = (*self._more(touched, met), *self._aliases.named(functions, self._was_before))
        return [one for one in kept if one is not None] + list(more)

    def _more(self, touched: Collection[Touched], met: set[int]) -> Iterator[Touched]:
        """Guards on identity and length."""
        places = {one.place for one in touched if one.read and one.outer}
        for one in touched:
            value = follow(one.name.owner(), one.name.path)
            if one.name.moved and one.container is value and one.place in places:
                places.remove(one.place)
                yield from unmoved_in(one, value, met, self._aliases.holds)
            if one.outer and one.length is not None:
                name = replace(one.name, found=one.length, deep=False, aspect=Aspect.LENGTH)
                yield one._replace(name=replace(name, moved=False), read=True, container=None)
            compared = id(value) in self._compared and one.name.path
            if one.outer and not one.name.moved and compared:
                name = replace(one.name, found=Same(value), deep=False, aspect=Aspect.IDENTITY)
                yield one._replace(name=name, container=None)
            if one.outer:
                yield from self._aliases.inside(one, self.old.keys())

    def _of_owner(self, box: _Box, held: Counter[int]) -> Iterator[Touched]:
        """The rows of an owner; none for a container that only the log holds, so the step made."""
        if is_container(box[0]) and sys.getrefcount(box[0]) <= 2 + held[id(box[0])]:
            return
        for row in box[1]:
            yield self._touch(row, box[0])

    def _touch(self, row: Row, owner: object) -> Touched:
        name, container = row.name, row.container
        value = follow(owner, name.path)
        moved = name.look(value) != name.found
        moved |= container is not None and value is not container  # an equal one
        if (not moved or row.read) and self._moves_about(row, value):
            name = replace(name, found=Never())
        name = replace(name, owner=Same(owner), moved=moved)
        return Touched(
            name,
            row.read,
            container,
            row.outer,
            counted=not row.stored,
            alike=row.alike,
            compared=isinstance(name.found, Same) and id(name.found()) in self._compared,
            length=len(row.name.found[1]) if row.counted else None,
            same_object=id(value) in self.old,
            within=row.within,
            identified=row.identified,
        )

    def _moves_about(self, row: Row, value: object) -> bool:
        """True where the step moved containers inside the value: copies do not equal them."""
        now = containers_within(value) if is_container(value) else {}
        return any(found in self.old and row.within.get(at) != found for at, found in now.items())


def _is_appended(row: Row, path: Path) -> bool:
    """True for an item that the step appended to a list."""
    container, found = row.container, row.name.found
    before, (_, key) = items_in(found), path[len(row.name.path)]
    if not isinstance(container, list) or items_in(look(container))[: len(before)] != before:
        return False
    small = isinstance(found[1], tuple)
    return small and type(key) is int and key % len(container) >= len(before)


def _is_held(owner: object) -> bool:
    """True for an owner without weak references."""
    return is_container(owner) or is_a(owner, Cell)


def _is_added_to(value: object) -> bool:
    """True for a value that replays can increment, which is no read.

    Anything else, such as an array, which is added to in place, or a number of a class of its own,
    counts as read: the result depends on the value before.
    """
    if is_buffer(value):
        return False
    listed = is_container(value) or is_a(value, torch.Tensor)
    return listed or type(value) in _ADDED_TO or issubclass(type(value), SYMBOLS)


_ADDED_TO = frozenset({int, float, str})
