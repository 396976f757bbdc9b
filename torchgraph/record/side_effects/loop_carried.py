"""Loop-carried Python values, which a step reads and writes: the next call depends on them.

A program is valid for one state of Python's objects. So that state is guarded, and the new one is
written after each replay: a flag that the step clears, a sign that it flips, a list that it
rotates.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CellType, ModuleType
from typing import Any, NamedTuple

import torch

from ...effects.entry_state import Item, Named, Pair, TensorAt, hidden_in, tensors_inside
from ...effects.side_effects import Assigned, Destination, flags
from ...effects.trees import Trees, constant
from ...errors import NoProgram
from ...guards import ABSENT
from ...guards.aspects import (
    Aspect,
    Drawn,
    Never,
    Same,
    by_kind,
    is_buffer,
    is_container,
    is_number as is_plain_look,
    items_in,
    look,
    own,
)
from ...guards.names import By, Name, Path, attribute, follow
from ...ir.names import is_number
from ...live.discovery import Entries
from ...live.logs import is_logger
from ...live.named import NumberPlace, is_number as is_plain_number, place_key, place_of
from ...live.step import Leaf
from ...objects import in_words
from ...structure import Unfit, mutable_parts
from ..chains.inside import keyed
from ..chains.resolve import is_library
from ..chains.touched import Met, Touched
from ..tape.number import bare, node_of
from ..tape.watch import AttributeWatch, Change, is_own
from .replaced import by_place
from .stored_tensors import StoredTensors
from .written import (
    Counter,
    Overwritten,
    Refilled,
    around_tuples,
    holder_at,
    places_on,
    repetition,
    takes_tensors,
)


@dataclass(frozen=True)
class Stray:
    """A name that leads to tensors which no scan of the step has found."""

    name: Name
    inside: bool
    """True where they are in the container under the name."""
    read: bool

    @property
    def key(self) -> tuple[object, ...]:
        """A hash key of the place."""
        return (*self.name.key, self.inside)

    @property
    def change(self) -> Change:
        """The change of the place, which no program writes."""
        return _change_at(self.name)

    def container(self) -> tuple[str, object] | None:
        """(name, container), as in `Step.containers`; None where it is gone."""
        name, owner = self.name, self.name.owner()
        if owner is None:
            return None
        if self.inside:
            found = follow(owner, name.path)
            return None if found is ABSENT else (name.shown, found)
        holder, by, key = place_of(owner, name.path)
        if holder is None or by is By.SLOT:
            return None if holder is None else (name.shown, owner)
        return ("", Entries(holder, (key,))) if isinstance(holder, dict) else (name.shown, holder)


class Moving(NamedTuple):
    """The Python numbers that are inputs and outputs of the program."""

    places: Mapping[tuple[int, object], Leaf]
    """The user's numbers, by place."""
    written: Collection[tuple[int, object]]
    """The places of optimizers' numbers that the program assigns."""
    output: Callable[[str, object], object]
    """Makes a number an output of the program."""


class LoopCarried:
    """The loop-carried values of one step: guards on them, and assignments after each replay.

    Args:
        stored_tensors: the containers with tensors, whose places it leaves to them.
        arguments: the tensors of the call.
        trees: takes apart the objects that the step leaves.
        moving: the numbers that are inputs and outputs of the program.
        adopts: True where the next call scans the strays.
    """

    def __init__(
        self,
        met: Met,
        watch: AttributeWatch,
        stored_tensors: StoredTensors,
        arguments: Sequence[torch.Tensor],
        trees: Trees,
        moving: Moving,
        *,
        adopts: bool,
    ) -> None:
        self._stored_tensors, self._trees, self._moving = stored_tensors, trees, moving.places
        self._arguments = {id(tensor): number for number, tensor in enumerate(arguments)}
        self._met, self._output = met, moving.output
        self._of_program = {holder for holder, _ in moving.written}
        """By identity, containers in which the program assigns numbers."""
        self._places: set[tuple[int, object]] = set()
        touched = [one for one in met.touched if one.identified and one.name.path]
        self._identified = {place_key(one.name) for one in touched}
        """The places of numbers that the step compares by identity."""
        numbers = [leaf for leaf in moving.places.values() if is_number(leaf.fqn)]
        self.names = [*map(_kind_of, numbers), *_objects(watch)]
        """Guards for later calls, and names that show why no two calls are alike."""
        self.assigned: dict[object, Assigned] = {}
        """The assignments after each replay, by place."""
        self.strays: list[Stray] = []
        self.numbers: list[NumberPlace] = []
        """Places in which the step changes a number that it may read: inputs from
        the next call on."""
        self.repeated: dict[object, tuple[Assigned, Change]] = {}
        """By place, write-only changes: replays repeat them where two calls agree."""
        self.changes: list[Change] = []
        """The changes that no replay writes."""
        self.refused: NoProgram | None = None
        self.together: list[Pair] = []
        """Guards on names that alias an argument of the call."""
        for owner, change, value in watch.stores():  # before counters are dropped from the reads
            if (id(own(owner)), change.name) not in moving.places:
                self._repeat(Named(_name_of(owner, change, value)), value, change)
        for owner, change, by in watch.drop_counters(met.counts):
            self._repeat(Counter(_name_of(owner, change, by)), by, change)
        for one in sorted(_as_wholes(met.touched), key=lambda one: not one.read):
            key = place_key(one.name) if one.name.path else None
            if key not in moving.places and (one.read or key not in moving.written):
                self._add(one)
        for owner, change in watch.changes():
            self._add_attribute(owner, change)
        self.assigned.update((m.place.key, m) for m in flags("training", watch.modes.items()))
        self._keep_together()
        self.together += _asked(met, watch, arguments)
        if not adopts:
            self.changes += [stray.change for stray in self.strays]
            self.names += [stray.name for stray in self.strays if stray.read]
            self.strays, self.refused = [], None

    def _slot(self, value: Any) -> object:
        """The program's output for a number that the step computed. Raises Unfit for a tensor."""
        if isinstance(value, torch.Tensor):
            raise Unfit("holds a tensor")
        return self._output("number", value)

    def _assign(self, place: Destination, tree: object) -> None:
        self.assigned[place.key] = Assigned(place, tree)

    def _repeat(self, place: Destination, value: object, change: Change) -> None:
        self.repeated[place.key] = Assigned(place, constant(value)), change

    def _keep_together(self) -> None:
        """Guard that an argument's tensor under a second name stays an alias."""
        named = [name for name in self.names if name.path and isinstance(name.found, Same)]
        guarded = {name.found: name for name in named if name.guarded}
        for name in named:
            other = guarded.get(name.found) if self._stored_tensors.takes(name) else None
            if other is not None:
                self.together.append(Pair(Named(name), Named(other)))

    def _sees_to(self, holder: object, key: object) -> bool:
        """True where replays write the value in ``holder`` under ``key``."""
        written = {(id(holder), key), (id(holder), Refilled)}
        return (id(holder), key) in self._moving or not written.isdisjoint(self._places)

    def _add_attribute(self, owner: object, change: Change) -> None:
        value = vars(owner).get(change.name, ABSENT)
        if (id(own(owner)), change.name) in self._moving:
            return
        name = _name_of(owner, change, value)
        if node_of(value) is not None:
            self._assign(Named(name), self._slot(value))
            if change.read:
                self._find(name, change.before, value)
            return
        if any(place(name).key in self.repeated for place in (Counter, Named)):
            return
        if self._stored_tensors.knows(vars(owner), change.name) and tensors_inside(value):
            return
        if is_container(value) and (
            self._stored_tensors.knows(value)
            or self._sees_to(value, None)
            or id(value) in self._of_program
        ):
            return
        if change.read and is_own(value) and not isinstance(value, torch.Tensor):
            self._assign(Named(name), constant(value))
            self._find(name, change.before, value)
        self.changes.append(change)

    def _find(self, name: Name, before: object, now: object) -> None:
        """Make a place whose number changes an input from the next call on."""
        moves = is_plain_number(before) and is_plain_number(bare(now))
        if moves and not self._stays_plain(name):
            self.numbers.append(NumberPlace(name))

    def _stays_plain(self, name: Name) -> bool:
        """True for a place that must hold a plain number, even a varying one."""
        if isinstance(place_of(name.owner(), name.path)[0], tuple):
            return True
        logs = is_logger(follow(name.owner(), name.path[:-1]))
        return logs or place_key(name) in self._identified

    def _find_in(self, name: Name, container: object, before: Any) -> None:
        """Make numbers in a container inputs, where nothing else in it has changed."""
        for (key, item), was in zip(keyed(container), before[-1], strict=True):
            path = (*name.path, (By.ITEM, key))
            inner = replace(name, shown=f"{name.shown}[{in_words(key)}]", path=path, deep=True)
            if look(item) == was:
                continue
            if is_container(item):
                self._find_in(inner, item, was)
            else:
                self._find(inner, _plain_number(was), item)

    def _add(self, one: Touched) -> None:
        name = one.name
        owner = name.owner()
        if not name.moved:
            self._unmoved(one)
            return
        if isinstance(owner, ModuleType) and is_library(owner.__name__):
            return  # our own patch, while the step was recorded
        value = follow(owner, name.path)
        if not one.outer:  # the step's own object, as far as is known
            if one.read:
                self.names.append(replace(name, guarded=False))
        elif tensors_inside(value) or _was_tensor(one) or _hides(one, value):
            self._tensors(one, value)
        elif name.aspect is Aspect.KINDS:
            self._fill_anew(one, value)
        elif not one.read:
            if one.container is value is not None and name.path:
                self.names.append(_the_same(one))
            self._unread(one, value)
        elif type(name.found) in (Never, Drawn):
            self.names.append(replace(name, found=Never()))
        else:
            self._plain(one, value)

    def _fill_anew(self, one: Touched, value: object) -> None:
        """Handle a container of which some values vary; varying numbers become inputs."""
        self.names.append(replace(one.name, found=Never()))
        if one.container is value and _same_but_for_numbers(value, one.name.found):
            self._find_in(one.name, value, one.name.found)

    def _unmoved(self, one: Touched) -> None:
        name = one.name
        if one.counted and not one.read and is_plain_look(name.found):
            return  # moved on by nothing, or not in this call
        position = self._arguments.get(id(follow(name.owner(), name.path)))
        if position is not None:
            self.together.append(Pair(Named(name), position))
        guarded = position is None and not self._stored_tensors.takes(name)
        found = by_place(one, self._stored_tensors.takes, self._met) if guarded else []
        self.names += found or [replace(name, guarded=guarded)]

    def _unread(self, one: Touched, value: object) -> None:
        """Replay write-only changes that repeat; no program writes the rest."""
        name = one.name
        repeated = repetition(one, value, self._trees, self._slot)
        if repeated is not None:
            self.repeated[repeated.place.key] = (repeated, _change_at(name))
            if isinstance(repeated.place, Counter):
                kind = replace(name, found=name.found[0], aspect=Aspect.KIND, moved=False)
                self.names.append(kind)
            self._see_to(one, value)
            return
        self._find(name, _plain_number(name.found), value)
        if not (self._stored_tensors.writes(value, places_on(name)) or self._sees_to(value, None)):
            self.changes.append(_change_at(name))

    def _tensors(self, one: Touched, value: object) -> None:
        """Handle a place with tensors, which `StoredTensors` assigns."""
        name, inside = one.name, one.container is value
        if hidden := _hides(one, value):
            self.refused = NoProgram(f"{name.shown} {hidden}", where=name.where)
            return
        if inside and name.path:
            self.names.append(_the_same(one))
        if one.read and (inside or _was_tensor(one)):
            self.names.append(replace(name, found=one.alike, aspect=Aspect.LIKENESS))
        elif one.read:
            self.names.append(replace(name, guarded=False))
        if _is_stored(one, value, self._stored_tensors):
            self.names += _ways(name, self._stored_tensors)
        else:
            stray = Stray(around_tuples(name), inside, one.read)
            if not (StoredTensors.can_carry(value) if inside else takes_tensors(name)):
                what = f"{name.shown} holds tensors where no program can put them."
                self.refused = NoProgram(what, where=name.where)
            else:
                self.strays.append(stray)

    def _plain(self, one: Touched, value: object) -> None:
        name = one.name
        self.names.append(name)
        if name.path and one.container is None:
            self._find(name, _plain_number(name.found), value)
        elif name.path and one.container is value and _same_but_for_numbers(value, name.found):
            self._find_in(name, value, name.found)
        if one.container is value is not None and is_buffer(value):
            self.names.append(_the_same(one))
            self._assign(Overwritten(value), constant(copy.copy(value)))
        elif one.container is value is not None:
            place = Refilled(value, name if name.path else None)
            held = [
                (kind, part)
                for kind, part, _ in mutable_parts(value)
                if part is value or (self._trees.has(part) and not _was_in(part, name.found))
            ]
            if len(held) > 1:  # with others in it, whose names are not known
                self.names.append(_the_same(one))
            try:
                self._assign(place, self._trees.contents(held, self._slot))
            except Unfit:  # no replay makes such an object again: it has to be as it was left
                self.names.append(replace(name, found=name.look(value)))
        elif name.path and not isinstance(place_of(name.owner(), name.path)[0], tuple):
            self._assign(Named(name), self._made(one, value))
        self._see_to(one, value)

    def _made(self, one: Touched, value: object) -> object:
        """The tree of the value that the step leaves there."""
        if value is ABSENT or (one.same_object and not is_container(value)):
            return constant(value)
        try:
            return self._trees.of(value, self._slot)
        except Unfit:  # for an object that differs in each call
            return constant(value)

    def _see_to(self, one: Touched, value: object) -> None:
        if one.container is value is not None and not is_buffer(value):
            held = (held for _, held, _ in mutable_parts(value))
            self._places.update((id(container), Refilled) for container in held)
        elif one.name.path:
            *_, (holder, key) = places_on(one.name)
            self._places.add((id(holder), None if isinstance(holder, CellType) else key))


def _change_at(name: Name) -> Change:
    path, _, last = name.shown.rpartition(".")
    return Change(path, last, read=False, where=name.where)


def _name_of(owner: object, change: Change, value: object) -> Name:
    """The name of an attribute that is watched."""
    return attribute(owner, change.name, value, str(change))


def _asked(met: Met, watch: AttributeWatch, arguments: Sequence[torch.Tensor]) -> Iterator[Pair]:
    """Identity guards of tensors that the step compares by ``is``."""
    found: list[tuple[Named | TensorAt, object]] = [
        (Named(one.name), one.name.found())
        for one in met.touched
        if one.compared and isinstance(one.name.found, Same)
    ]
    found += [
        (TensorAt(Item(name, held, name), 0), tensor)
        for held, name, tensor in watch.tensors()
        if id(tensor) in met.compared
    ]
    for number, (one, value) in enumerate(found):
        others = [*enumerate(arguments), *found[:number]]
        for other, another in others:
            yield Pair(one, other, value is another, identical=True)


def _plain_number(found: object) -> object:
    """The number of a `look`; None for others."""
    if not (isinstance(found, tuple) and len(found) == 2):
        return None
    kind, value = found
    return kind(value) if kind is int or kind is float else None


def _kind_of(leaf: Leaf) -> Name:
    """The guard on the type of a symbolic number."""
    kind = type(leaf.value)
    name: Name = leaf.root.name
    return replace(
        name, found=kind, value=kind.__name__, aspect=Aspect.KIND, moved=False, guarded=True
    )


def _as_wholes(touched: Sequence[Touched]) -> list[Touched]:
    """Merge places into the containers that the step reads and changes as wholes.

    An item of a tuple cannot be written, and one of a list that is another now is of that one.
    """
    wholes = {one.place: one for one in touched if one.name.deep}
    looked = (one for one in touched if one.read and one.name.aspect is not Aspect.IDENTITY)
    read = {one.place for one in looked if one.place in wholes}
    kept = []
    moved = {place for place, one in wholes.items() if one.name.moved}
    for one in touched:
        around = _replaced_around(one, wholes) if one.read and one.name.moved else None
        if around is None:
            kept.append(one)
        elif around in wholes:
            read.add(around)
        else:
            kept.append(one._replace(name=replace(one.name, found=Never())))
    return [
        one._replace(read=one.read or (one.place in read and one.place in moved))
        for one in kept
        if one.name.deep or one.place not in moved
    ]


def _was_in(value: object, found: object) -> bool:
    """True for an object that was in the container before, where names lead to its content."""
    if isinstance(found, tuple):
        return any(_was_in(value, one) for one in found)
    return isinstance(found, Same) and found() is value


def _replaced_around(
    one: Touched, wholes: Mapping[tuple[int, Path], Touched]
) -> tuple[int, Path] | None:
    """The place of a container that another container has replaced; None for none."""
    owner, path = one.name.owner(), one.name.path
    for length in range(1, len(path)):
        value, place = follow(owner, path[:length]), (id(owner), path[:length])
        if path[length][0] is not By.ITEM or tensors_inside(value):
            continue
        around = wholes.get(place)
        if isinstance(value, tuple) or (around is not None and _is_rearranged(around, value)):
            return place
    return None


def _is_rearranged(one: Touched, now: object) -> bool:
    """True where the container is another one, or its items have moved."""
    if not one.name.moved or one.container is not now:
        return one.name.moved
    if isinstance(now, deque) and now.maxlen is not None:
        return True
    if not isinstance(now, (list, deque)):
        return False
    before, items = items_in(one.name.found), items_in(look(now))
    return len(before) != len(items) and items[: len(before)] != before


def _of_object(name: Name, value: object) -> Name:
    """The identity guard of a name."""
    return replace(name, found=Same(value), moved=False, aspect=Aspect.IDENTITY)


def _objects(watch: AttributeWatch) -> Iterator[Name]:
    """Identity guards of attributes that were assigned the object that they held."""
    for path, owner, name, value in watch.objects():
        yield _of_object(attribute(owner, name, value, f"{path}.{name}"), value)


def _the_same(one: Touched) -> Name:
    """The identity guard of a container that the step fills."""
    return _of_object(one.name, one.container)


def _hides(one: Touched, value: object) -> str:
    """Why a new object of the step may hide tensors; empty where it cannot."""
    old = one.same_object or one.container is value or type(one.name.found) is Never
    return "" if old else hidden_in(value)


def _was_tensor(one: Touched) -> bool:
    return isinstance(one.name.found, Same) and one.alike is not None


def _ways(name: Name, stored_tensors: StoredTensors) -> Iterator[Name]:
    """Identity guards of the containers on the path to a place that a program writes."""
    owner = name.owner()
    for length in range(1, len(name.path)):
        value, path = follow(owner, name.path[:length]), name.path[:length]
        if isinstance(value, (dict, list, deque)) and not stored_tensors.replaces(
            *holder_at(owner, path)
        ):
            yield _of_object(replace(name, path=path), value)


def _is_stored(one: Touched, value: object, stored_tensors: StoredTensors) -> bool:
    if one.container is value is not None:
        return stored_tensors.knows(value)
    places = list(places_on(one.name))
    if any(stored_tensors.replaces(holder, key) for holder, key in places):
        return True  # with all that is in it
    return bool(places) and stored_tensors.knows(*places[-1])


def _same_but_for_numbers(container: object, found: object) -> bool:
    """True where all but numbers is unchanged; False for sets and arrays."""
    keyed = is_container(container) and not isinstance(container, (set, frozenset))
    return keyed and by_kind(look(container)) == by_kind(found)
