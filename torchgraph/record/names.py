"""What the user's code reads by name while a step is recorded: it becomes part of the guards.

The chains of each line (see `scan`) are looked at just before it runs (see `frames`), step by step
(see `resolve`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from .._torch import storage_id
from ..aliasing import has_strides
from ..capture.step import Leaf
from ..errors import SourceLine
from ..guards import ABSENT
from ..guards.names import (
    By,
    Name,
    Never,
    Path,
    Same,
    follow,
    is_container,
    look,
    of_class,
    shown,
)
from ..program import Role
from .frames import Frames
from .inside import containers_in, has_more_than_tensors, keyed, lies_in
from .resolve import Source, is_library, is_ours, looks_up_itself, step_of
from .scan import Chain, Line, Root, Use
from .touched import CONTENT, Cell, Counts, Touched, in_cell, settings

_WRITES = {
    **dict.fromkeys(("append", "extend", "insert", "add", "discard", "appendleft"), Use.COUNTED),
    "clear": Use.CLEARED,
}
"""Methods of containers that look at nothing."""
_LEAVES = frozenset({bool, int, float, complex, str, bytes, type(None)})
_PROBED = 256
"""Attributes of one object that are looked at when all of them count."""


class NameWatch:
    """Of one recording.

    Args:
        given: the arguments of the call: what is in containers among them is in its key.
        guarded: true for an object whose own attributes others watch.
        bound: what the function of the step is bound to.
    """

    def __init__(
        self, given: Any, guarded: Callable[[Any], bool], bound: Sequence[Any] = ()
    ) -> None:
        self._guarded = guarded
        self._names: dict[Any, tuple[Any, Name]] = {}
        """All that was read, and what the step wrote, as it was before."""
        self._reads: set[Any] = set()
        self._own: set[Any] = set()
        """What the step wrote before it read it."""
        self._counts: Counts = Counter()
        self._stored: set[Any] = set()
        self._replaced: set[Any] = set()
        """What the step may have replaced, whether it reads it or not."""
        self._containers: dict[Any, Any] = {}
        self._classes: set[type] = set()
        self._outside: dict[int, Any] = {}
        """By identity, what was there before the step, as far as names have led there."""
        self._outer: set[Any] = set()
        self._led: dict[int, tuple[Any, list[Source]]] = {}
        """How a container was reached."""
        self._given = set(map(id, containers_in(given)))
        self._seen: dict[Any, Same] = {}
        self._once: set[tuple[CodeType, int]] = set()
        self.frames = Frames(self)
        self._cells: dict[Any, Cell] = {}
        self._where: SourceLine | None = None
        self._touched: list[Any] = []
        for value in bound:
            self._mark(value)

    # --- line by line -----------------------------------------------------------------------------

    def active(self) -> AbstractContextManager[None]:
        """Look at what the block reads, in this thread."""
        return self.frames.active()

    def before(self, frame: FrameType, number: int, line: Line) -> list[tuple[Any, Use]]:
        """Look at what a line reads, and at what it may replace; gives the latter."""
        if line.chains:
            self._read(frame, line.chains, number)
        self._touched = []
        for chain, use in line.stores:
            if use is Use.COUNTED:
                self._count(frame, chain)
            read = self._global if chain.root is Root.GLOBAL else self._variable
            read(frame, chain, use)
        return self._touched

    def _count(self, frame: FrameType, chain: Chain) -> None:
        """``self.calls += 1`` of an object whose attributes others watch."""
        value = frame.f_locals.get(chain.name, frame.f_globals.get(chain.name))
        for step in chain.steps[:-1]:
            found = step_of(value, step.key, item=step.item, guarded=self._guarded)
            if found is None:
                return
            value = found.value
        if chain.steps and self._guarded(value):
            self._counts[id(value), chain.steps[-1].key] += 1

    def after(self, frame: FrameType, line: Line, found: list[tuple[Any, Use]]) -> None:
        """Look at what came under a name while the line ran, and at what it has replaced."""
        if line.inner:
            self._read(frame, line.inner)
        for key, use in found:
            if self._is_another(frame, key) and use is Use.STORED and key not in self._reads:
                self._own.add(key)

    def _is_another(self, frame: FrameType, key: Any) -> bool:
        owner, name = self._names[key]
        if not isinstance(owner, Cell):
            held = owner if _is_held(owner) else owner()
            return bool(look(follow(held, name.path), deep=name.deep) != name.found)
        now = frame.f_locals.get(owner.name, ABSENT)
        if name.path != CONTENT or now is ABSENT:
            return False
        owner.last = in_cell(now)
        self._cells[owner.name, owner.last] = owner
        return bool(look(now, deep=name.deep) != name.found)

    def _read(self, frame: FrameType, chains: Sequence[tuple[Chain, Use]], line: int = 0) -> None:
        code = frame.f_code
        again = (code, line) in self._once
        self._once.add((code, line))
        self._where = SourceLine(code.co_filename, line or frame.f_lineno or 0, code.co_name)
        for chain, use in chains:
            if chain.root is not Root.GLOBAL:
                self._variable(frame, chain, use)
            elif not again:
                self._global(frame, chain, use)

    def _global(self, frame: FrameType, chain: Chain, use: Use) -> None:
        held = frame.f_globals
        self._outside[id(held)] = held
        value = held.get(chain.name, ABSENT)
        if value is ABSENT and chain.name not in frame.f_builtins:
            return
        self._walk(chain, use, value, [Source(held, ((By.ITEM, chain.name),))])

    def _variable(self, frame: FrameType, chain: Chain, use: Use) -> None:
        value = frame.f_locals.get(chain.name, ABSENT)
        if value is ABSENT:
            return
        sources: list[Source] = []
        if chain.root is Root.FREE and not self.frames.is_local(frame, chain.name):
            if chain.name == "__class__":
                return
            sources = [Source(self._cell(chain.name, value), CONTENT)]
        elif not chain.steps and not is_container(value) and use is not Use.INSIDE:
            return  # a local name: how it came to its value was looked at before
        if id(value) in self._given:
            return
        if not sources and not is_container(value):
            if isinstance(value, torch.Tensor) and not vars(value):
                return
            key = (id(value), chain.steps, use)
            seen = self._seen.get(key)
            if seen is not None and seen() is value:
                return
            self._seen[key] = Same(value)
        elif id(value) in self._led:
            sources = [*self._led[id(value)][1], *sources]
        self._walk(chain, use, value, sources)

    def _cell(self, name: str, value: Any) -> Cell:
        found = in_cell(value)
        return self._cells.setdefault((name, found), Cell(name, found))

    # --- along a chain ----------------------------------------------------------------------------

    def _walk(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        for number, step in enumerate(chain.steps):
            at = chain._replace(steps=chain.steps[:number])
            if id(value) in self._given:
                return
            if is_container(value):
                self._arrive(at, Use.NAMED, value, sources)
                sources = sources or [Source(value, ())]
            else:
                self._arrive(at, use if use is Use.INSIDE else Use.NAMED, value, sources)
            found = step_of(value, step.key, item=step.item, guarded=self._guarded)
            if found is None:
                self._stop(at, step.key, value, sources)
                return
            for name in found.absent:
                self._add(str(at), ABSENT, name, Use.NAMED)
            if self._guarded(value):  # its attributes have no names here
                self._mark(found.value)
            value, sources = found.value, found.sources(sources)
        self._arrive(chain, use, value, sources)

    def _stop(self, at: Chain, key: Any, value: Any, sources: list[Source]) -> None:
        """Code of the object's own gives what follows."""
        if is_container(value):
            self._arrive(at, _WRITES.get(key, Use.WHOLE), value, sources)
        elif looks_up_itself(value):
            self._inside(at, value)

    def _arrive(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if id(value) in self._given or is_ours(value):
            return
        if is_container(value):
            self._contents(chain, use, value, sources)
            return
        self.frames.see(value)
        self._operators(type(value))
        for source in sources:
            self._add(str(chain), value, source, use)
        if use is Use.INSIDE:
            self._inside(chain, value)

    def _operators(self, cls: type) -> None:
        """The special methods of a user's class: no name leads to them."""
        if cls in self._classes or is_library(cls.__module__):
            return
        self._classes.add(cls)
        names = (name for one in cls.__mro__ for name in vars(one) if name.startswith("__"))
        for name in dict.fromkeys(names):
            found = of_class(cls, name)
            if isinstance(found, FunctionType) and not is_library(found.__module__):
                source = Source(cls, ((By.CLASS, name),))
                self._add(f"{cls.__qualname__}.{name}", found, source, Use.NAMED)

    def _contents(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if sources:
            known = self._led.setdefault(id(value), (value, []))[1]
            marks = {(id(owner), path) for owner, path in known}
            known += [source for source in sources if (id(source[0]), source[1]) not in marks]
        elif not isinstance(value, tuple) and has_more_than_tensors(value):
            sources = [Source(value, ())]
        for source in sources if use is not Use.NAMED else ():
            self._add(str(chain), value, source, use, deep=use is not Use.ITEMS)
            if use < Use.NAMED:
                self._add(str(chain), value, source, use, deep=False)
        if use is Use.ITEMS and len(value) <= _PROBED:
            for key, item in keyed(value):
                below = [Source(s.owner, (*s.path, (By.ITEM, key))) for s in sources]
                if is_container(item):
                    self._contents(chain.then(True, key), Use.NAMED, item, below)

    def _inside(self, chain: Chain, value: Any) -> None:
        """All attributes of an object that are plain values or containers."""
        if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or self._guarded(value):
            return
        attributes = step_of(value, "__dict__", item=False, guarded=self._guarded)
        if attributes is None or len(attributes.value) > _PROBED:
            return
        for key, item in list(attributes.value.items()):
            self._add(f"{chain}.{key}", item, Source(value, ((By.OWN, key),)), Use.WHOLE)

    def _add(self, text: str, value: Any, source: Source, use: Use, *, deep: bool = True) -> None:
        owner, path = source
        key = (id(owner), path, deep)
        if key not in self._names:
            self._meet(key, text, value, source, use)
        if self._is_outside(owner):
            self._outer.add(key)
            if key not in self._own:
                self._mark(value)
        if use < Use.NAMED:
            self._replaced.add(key)
            if use is Use.STORED:
                self._stored.add(key)
            elif use is Use.CLEARED and key not in self._reads:
                self._own.add(key)
            self._touched.append((key, use))
        elif key not in self._own:
            self._reads.add(key)

    def _meet(self, key: Any, text: str, value: Any, source: Source, use: Use) -> None:
        owner, path = source
        found, words = self._look(value, use, deep=key[-1]), shown(value)
        name = Name(text, lambda: None, path, key[-1], found, words, self._where)
        self._names[key] = (owner if _is_held(owner) else Same(owner), name)
        for around in self._moved_around(owner, path):
            self._own.add(key)  # it is what the step has made of what is around it
            if not (isinstance(value, torch.Tensor) or self._is_appended(around, path)):
                self._reads.add(around)
        if is_container(value) and not isinstance(value, (tuple, frozenset)):
            self._containers[key] = value

    def _moved_around(self, owner: Any, path: Path) -> Iterator[Any]:
        """Containers on the way that the step has changed since it met them."""
        for length in range(1, len(path)):
            key = (id(owner), path[:length], True)
            container = self._containers.get(key)
            if container is not None and look(container) != self._names[key][1].found:
                yield key

    def _is_appended(self, around: Any, path: Path) -> bool:
        """True for an item behind all that a list held when the step met it."""
        container, before = self._containers[around], self._names[around][1].found[1]
        key = path[len(around[1])][1]
        listed = isinstance(container, list) and isinstance(before, tuple)
        kept = listed and look(container)[1][: len(before)] == before
        return kept and type(key) is int and key % len(container) >= len(before)

    def _look(self, value: Any, use: Use, *, deep: bool) -> Any:
        """What gives another value each time is never as it was."""
        if isinstance(value, Iterator) and use in (Use.ITEMS, Use.WHOLE):
            return Never()
        return look(value, deep=deep)

    def _is_outside(self, owner: Any) -> bool:
        known = isinstance(owner, (Cell, torch.nn.Module, type)) or id(owner) in self._outside
        return known or self._guarded(owner)

    def _mark(self, value: Any, depth: int = 3) -> None:
        """It was there before the step, and what is in it."""
        if type(value) in _LEAVES or id(value) in self._outside:
            return
        self._outside[id(value)] = value
        if depth and is_container(value) and len(value) <= _PROBED:
            for item in dict.values(value) if isinstance(value, dict) else value:
                self._mark(item, depth - 1)

    # --- afterwards -------------------------------------------------------------------------------

    def finish(self, leaves: Sequence[tuple[Leaf, int]]) -> tuple[list[Touched], Counts]:
        """What was read and written, and how often ``+=`` moved an attribute that others watch."""
        inputs = [leaf for leaf, _ in leaves if isinstance(leaf.value, torch.Tensor)]
        lasting = {storage_id(leaf.value) for leaf in inputs if leaf.role is not Role.INPUT}
        met = {storage_id(leaf.value) for leaf in inputs if has_strides(leaf.value)} | lasting
        functions = self._functions()
        self._led.clear()
        self._outside.clear()
        found = [Touched(name, True, None, True) for name in settings(functions)]
        boxes: dict[int, Any] = {}
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
        for box in boxes.values():
            found += self._of_owner(box)
        self._containers.clear()
        # What was read later under the same name, the step has put there.
        touched = {one.name.key: one for one in reversed(found)}.values()
        kept = [one for one in touched if not _is_idle(one, met if one.outer else lasting)]
        return kept, self._counts

    def _of_owner(self, box: tuple[Any, list[Any]]) -> Iterator[Touched]:
        """A container that only this holds was made by the step."""
        if is_container(box[0]):
            ours = 2 + sum(held is box[0] for held in self._containers.values())
            if sys.getrefcount(box[0]) <= ours:
                return
        for key, name in box[1]:
            yield self._touch(key, name, box[0])

    def _touch(self, key: Any, name: Name, owner: Any) -> Touched:
        now = look(follow(owner, name.path), deep=name.deep)
        name = replace(name, owner=Same(owner), moved=now != name.found)
        counted = key not in self._stored
        container = self._containers.get(key)
        return Touched(name, key in self._reads, container, key in self._outer, counted)

    def _functions(self) -> list[FunctionType]:
        found = self.frames.functions(everywhere=False)
        if all(cell.within(found) for cell in self._cells.values()):
            return found
        return self.frames.functions(everywhere=True)


def _is_idle(one: Touched, inputs: set[int]) -> bool:
    """True for a tensor that the step has only looked at, as an object."""
    value = follow(one.name.owner(), one.name.path)
    return not one.name.moved and isinstance(value, torch.Tensor) and not lies_in(value, inputs)


def _is_held(owner: Any) -> bool:
    """True for what no weak reference finds again."""
    return is_container(owner) or isinstance(owner, Cell)
