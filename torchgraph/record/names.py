"""What the user's code reads by name while a step is recorded: it becomes part of the guards.

The chains of each line (see `scan`) are looked at just before it runs (see `frames`), step by step
(see `resolve`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from .._torch import storage_id
from ..capture.step import Leaf
from ..errors import SourceLine
from ..guards import ABSENT
from ..guards.names import By, Name, Path, Same, follow, is_container, look, shown
from ..program import Role
from .frames import Frames
from .resolve import Source, looks_up_itself, step_of
from .scan import Chain, Line, Root, Use

_WRITES = frozenset({"append", "extend", "insert", "add", "clear", "discard", "appendleft"})
"""Methods of containers that look at nothing."""
_PROBED = 256
"""Attributes of one object that are looked at when all of them count."""


class _Cell:
    """A variable of a function around, until the function is found."""

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self.last = found
        """The look at what it held last."""

    def within(self, functions: Sequence[FunctionType]) -> list[Any]:
        """The cells that it may be: there may be several functions of one code."""
        return [
            cell
            for function in functions
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=False
            )
            if name == self.name and _in_cell(follow(cell, _CONTENT)) == self.last
        ]


_CONTENT: Path = ((By.SLOT, "cell_contents"),)


def _in_cell(value: Any) -> Any:
    return look(value, deep=False, level=1)


class NameWatch:
    """Of one recording.

    Args:
        given: the arguments of the call: what is in containers among them is in its key.
        guarded: true for an object whose own attributes others watch.
    """

    def __init__(self, given: Any, guarded: Callable[[Any], bool]) -> None:
        self._guarded = guarded
        self._names: dict[Any, tuple[Any, Name]] = {}
        """All that was read, and what the step wrote, as it was before."""
        self._reads: set[Any] = set()
        self._own: set[Any] = set()
        """What the step wrote before it read it."""
        self._replaced: set[Any] = set()
        """What the step may have replaced, whether it reads it or not."""
        self._tensors: dict[Any, Any] = {}
        self._containers: dict[Any, Any] = {}
        self._led: dict[int, tuple[Any, list[Source]]] = {}
        """How a container was reached."""
        self._given = set(map(id, _containers(given)))
        self._seen: dict[Any, Same] = {}
        self._once: set[tuple[CodeType, int]] = set()
        self._frames = Frames(self)
        self._cells: dict[Any, _Cell] = {}
        self._where: SourceLine | None = None
        self._touched: list[Any] = []

    # --- line by line -----------------------------------------------------------------------------

    def active(self) -> AbstractContextManager[None]:
        """Look at what the block reads, in this thread."""
        return self._frames.active()

    def before(self, frame: FrameType, number: int, line: Line) -> list[tuple[Any, Use]]:
        """Look at what a line reads, and at what it may replace; gives the latter."""
        if line.chains:
            self._read(frame, line.chains, number)
        self._touched = []
        for chain, use in line.stores:
            read = self._global if chain.root is Root.GLOBAL else self._variable
            read(frame, chain, use)
        return self._touched

    def after(self, frame: FrameType, line: Line, found: list[tuple[Any, Use]]) -> None:
        """Look at what came under a name while the line ran, and at what it has replaced."""
        if line.inner:
            self._read(frame, line.inner)
        for key, use in found:
            if self._is_another(frame, key) and use is Use.STORED and key not in self._reads:
                self._own.add(key)

    def _is_another(self, frame: FrameType, key: Any) -> bool:
        owner, name = self._names[key]
        if not isinstance(owner, _Cell):
            held = owner if _is_held(owner) else owner()
            return bool(look(follow(held, name.path), deep=name.deep) != name.found)
        now = frame.f_locals.get(owner.name, ABSENT)
        if name.path != _CONTENT or now is ABSENT:
            return False
        owner.last = _in_cell(now)
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
        value = held.get(chain.name, ABSENT)
        if value is ABSENT and chain.name not in frame.f_builtins:
            return
        self._walk(chain, use, value, [Source(held, ((By.ITEM, chain.name),))])

    def _variable(self, frame: FrameType, chain: Chain, use: Use) -> None:
        value = frame.f_locals.get(chain.name, ABSENT)
        if value is ABSENT:
            return
        sources: list[Source] = []
        if chain.root is Root.FREE and not self._frames.is_local(frame, chain.name):
            if chain.name == "__class__":
                return
            sources = [Source(self._cell(chain.name, value), _CONTENT)]
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

    def _cell(self, name: str, value: Any) -> _Cell:
        found = _in_cell(value)
        return self._cells.setdefault((name, found), _Cell(name, found))

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
            value, sources = found.value, found.sources(sources)
        self._arrive(chain, use, value, sources)

    def _stop(self, at: Chain, key: Any, value: Any, sources: list[Source]) -> None:
        """Code of the object's own gives what follows."""
        if is_container(value):
            use = Use.COUNTED if key in _WRITES else Use.WHOLE
            self._arrive(at, use, value, sources)
        elif looks_up_itself(value):
            self._inside(at, value)

    def _arrive(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if id(value) in self._given:
            return
        if is_container(value):
            self._contents(chain, use, value, sources)
            return
        self._frames.see(value)
        for source in sources:
            self._add(str(chain), value, source, use)
        if use is Use.INSIDE:
            self._inside(chain, value)

    def _contents(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if sources:
            known = self._led.setdefault(id(value), (value, []))[1]
            marks = {(id(owner), path) for owner, path in known}
            known += [source for source in sources if (id(source[0]), source[1]) not in marks]
        elif not isinstance(value, tuple) and _has_more_than_tensors(value):
            sources = [Source(value, ())]
        for source in sources if use is not Use.NAMED else ():
            self._add(str(chain), value, source, use, deep=use is not Use.ITEMS)
            if use < Use.NAMED:
                self._add(str(chain), value, source, use, deep=False)
        if use is Use.ITEMS and len(value) <= _PROBED:
            for key, item in _keyed(value):
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
            found, words = look(value, deep=deep), shown(value)
            name = Name(text, lambda: None, path, deep, found, words, self._where)
            self._names[key] = (owner if _is_held(owner) else Same(owner), name)
            if isinstance(value, torch.Tensor):
                self._tensors[key] = Same(value)
            elif is_container(value) and not isinstance(value, (tuple, frozenset)):
                self._containers[key] = value
        if use < Use.NAMED:
            self._replaced.add(key)
            self._touched.append((key, use))
        elif key not in self._own:
            self._reads.add(key)

    # --- afterwards -------------------------------------------------------------------------------

    def finish(self, leaves: Sequence[tuple[Leaf, int]]) -> list[Name]:
        """The names that were read, when the step is over; of tensors, those of its inputs."""
        inputs = {
            storage_id(leaf.value)
            for leaf, _ in leaves
            if isinstance(leaf.value, torch.Tensor) and leaf.role is not Role.INPUT
        }
        functions = self._functions()
        self._led.clear()
        found = list(self._defaults(functions))
        boxes: dict[int, Any] = {}
        for key, (owner, name) in self._names.items():
            if key not in self._reads and key not in self._replaced:
                continue
            if key in self._tensors:
                tensor = self._tensors[key]()
                if tensor is None or not _lies_in(tensor, inputs):
                    continue
            held = owner if _is_held(owner) else owner()
            if isinstance(held, _Cell):
                for cell in held.within(functions):
                    found += self._named(key, name, cell)
            elif held is not None:
                boxes.setdefault(id(held), (held, []))[1].append((key, name))
        self._names.clear()
        self._cells.clear()
        owner = held = None
        for box in boxes.values():
            found += self._of_owner(box)
        self._containers.clear()
        # What was read later under the same name, the step has put there.
        return list({name.key: name for name in reversed(found)}.values())

    def _of_owner(self, box: tuple[Any, list[Name]]) -> Iterator[Name]:
        """A container that only this holds was made by the step."""
        if is_container(box[0]) and sys.getrefcount(box[0]) <= 2:
            return
        for key, name in box[1]:
            yield from self._named(key, name, box[0])

    def _named(self, key: Any, name: Name, owner: Any) -> Iterator[Name]:
        """A name; what the step writes in any case is its own, but not where it lies."""
        value = follow(owner, name.path)
        moved = look(value, deep=name.deep) != name.found
        name = replace(name, owner=Same(owner), moved=moved)
        container = self._containers.get(key)
        if moved and container is value is not None and name.path:
            yield replace(name, found=Same(container), moved=False)
        elif key in self._reads or not moved:
            yield name

    def _functions(self) -> list[FunctionType]:
        found = self._frames.functions(everywhere=False)
        if all(cell.within(found) for cell in self._cells.values()):
            return found
        return self._frames.functions(everywhere=True)

    def _defaults(self, functions: Sequence[FunctionType]) -> Iterator[Name]:
        for function in functions:
            for attribute in ("__defaults__", "__kwdefaults__"):
                value = getattr(function, attribute)
                line = SourceLine(
                    function.__code__.co_filename,
                    function.__code__.co_firstlineno,
                    function.__name__,
                )
                path: Path = ((By.SLOT, attribute),)
                text = f"{function.__qualname__}.{attribute}"
                if value is not None:
                    found = look(value, deep=False)
                    yield Name(text, Same(function), path, False, found, shown(value), line)


def _lies_in(tensor: torch.Tensor, storages: set[int]) -> bool:
    return tensor.layout is torch.strided and storage_id(tensor) in storages


def _is_held(owner: Any) -> bool:
    """True for what no weak reference finds again."""
    return is_container(owner) or isinstance(owner, _Cell)


def _keyed(container: Any) -> list[tuple[Any, Any]]:
    if isinstance(container, dict):
        return [row for row in dict.items(container) if type(row[0]) in (str, int, bool)]
    return list(enumerate(container)) if isinstance(container, (list, tuple)) else []


def _has_more_than_tensors(container: Any) -> bool:
    items = dict.values(container) if isinstance(container, dict) else container
    return not all(isinstance(item, torch.Tensor) for item in items)


def _containers(value: Any) -> Iterator[Any]:
    """The containers among the arguments of a call, which may hold one another."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, (list, tuple, dict)) and id(found) not in seen:
            seen.add(id(found))
            yield found
            pending.extend(found.values() if isinstance(found, dict) else found)
