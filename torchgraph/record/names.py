"""What the user's code reads by name while a step is recorded: it becomes part of the guards.

The chains of each line (see `scan`) are looked at just before it runs (see `frames`), step by step
(see `resolve`).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any

import torch

from ..capture.step import Leaf
from ..errors import SourceLine
from ..guards import ABSENT
from ..guards.looks import Same, count, elements, is_container, own
from ..guards.names import By, of_class
from .acted import Acted
from .behind import (
    PROBED,
    WEAK,
    WRITES,
    behind,
    called_by_others,
    closed,
    is_holder,
    is_iterator,
    is_users,
    steps_of,
)
from .chains import Chain, Line, Reads, Root, StackUse, Step, Use
from .frames import Frames
from .inside import containers_in, has_more_than_tensors, keyed, objects_in
from .ledger import Ledger, Meeting
from .resolve import Source, class_path, is_ours, leads_to, looks_up_itself, shadow_of, step_of
from .touched import CONTENT, Counts, Met, Touches


class NameWatch:
    """Of one recording.

    Args:
        given: the arguments of the call: what is in containers among them is in its key.
        guarded: true for an object whose own attributes others watch.
        bound: the function of the step, and what it is bound to.
        moving: by identity, containers whose numbers are inputs of the program just now.
    """

    def __init__(
        self,
        given: Any,
        guarded: Callable[[Any], bool],
        bound: Sequence[Any] = (),
        moving: Mapping[int, Any] = MappingProxyType({}),
        acted: Acted | None = None,
    ) -> None:
        self._guarded, self._moving, self._acted = guarded, moving, acted or Acted()
        self._ledger = Ledger(guarded, objects_in(given))
        self._counts: Counts = Counter()
        self._classes: set[type] = set()
        self._led: dict[int, tuple[Any, list[Source]]] = {}
        """How a container was reached."""
        self._given = set(map(id, containers_in(given)))
        self._seen: dict[Any, Same] = {}
        self._once: set[tuple[CodeType, int, bool, int]] = set()
        self._stores = 0
        """How often something was stored: names may lead elsewhere since."""
        self._cut: set[tuple[CodeType, int]] = set()
        """Lines in which a name leads to what code of the user's own gives."""
        self.frames = Frames(self)
        self._frame: Any = None
        self._line = 0
        self._where: SourceLine | None = None
        self._touched: Touches = []
        for value in bound:
            self._ledger.mark(value)

    # --- line by line -----------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Look at what the block reads, in this thread."""
        with self._ledger.listening(), self.frames.active():
            yield

    def before(self, frame: FrameType, number: int, line: Line) -> Touches:
        """Look at what a line reads; gives room for what it replaces."""
        if line.chains:
            self._read(frame, line.chains, number)
        return []

    def stored(self, frame: FrameType, found: Touches, stores: Reads) -> None:
        """Look at what is about to be replaced."""
        self._set_line(frame, 0)
        self._touched = found
        self._stores += 1
        for chain, use in stores:
            if use is Use.COUNTED:
                self._count(frame, chain)
            read = self._global if chain.root is Root.GLOBAL else self._variable
            read(frame, chain, use)

    def _count(self, frame: FrameType, chain: Chain) -> None:
        """``self.calls += 1`` of an object whose attributes others watch."""
        value = leads_to(frame, chain._replace(steps=chain.steps[:-1]), self._guarded)
        if chain.steps and value is not ABSENT and self._guarded(value):
            self._counts[id(value), chain.steps[-1].key] += 1

    def after(self, frame: FrameType, line: Line, found: Touches) -> None:
        """Look at what came under a name while the line ran, and at what it has replaced."""
        if line.inner:
            self._read(frame, line.inner)
        self._written(frame, found)

    def again(self, frame: FrameType, reads: Reads, found: Touches) -> None:
        """Look at what a line reads after it has replaced something."""
        self._written(frame, found)
        self._read(frame, reads, frame.f_lineno or 0)

    def _written(self, frame: FrameType, found: Touches) -> None:
        for key, use in found:
            self._ledger.written(key, use, lambda name: frame.f_locals.get(name, ABSENT))

    def inside(self, frame: FrameType, line: Line) -> None:
        """Look at what a loop in one line reads of its variable."""
        self._read(frame, line.inner)

    def returned(self, frame: FrameType, line: Line, value: Any) -> None:
        """Look at what a function has returned that a line of ``frame`` calls."""
        if isinstance(value, torch.Tensor):
            return
        self._set_line(frame, 0)
        for chain, use in line.returned:
            self._local(chain, use, value, [])

    def handed(self, frame: FrameType, values: list[Any]) -> None:
        """Look at all attributes of what a library's function is called with."""
        for value in values:
            if self._ledger.was_there(value) and not is_container(value):
                self._set_line(frame, 0)
                self._inside(type(value).__name__, value)

    def is_cut(self, frame: FrameType, number: int) -> bool:
        """True where code of the user's own gives what the line goes on with."""
        return (frame.f_code, number) in self._cut

    def used(self, frame: FrameType, found: Touches, at: StackUse, value: Any, key: Any) -> None:
        """Look at a value on the stack, or at what lies there in it."""
        if isinstance(value, torch.Tensor) and not own(value):
            return
        self._set_line(frame, 0)
        self._touched = found
        self._stores += at.use < Use.NAMED
        for steps in steps_of(at, key):
            self._local(Chain(Root.RETURNED, "(...)", steps), at.use, value, [])

    def _set_line(self, frame: FrameType, line: int) -> None:
        code = frame.f_code
        self._line = line or frame.f_lineno or 0
        self._where = SourceLine(code.co_filename, self._line, code.co_name)
        self._frame = frame

    def _read(self, frame: FrameType, chains: Reads, line: int = 0) -> None:
        at = (frame.f_code, line, bool(self._moving), self._stores)
        again = at in self._once
        self._once.add(at)
        self._set_line(frame, line)
        for chain, use in chains:
            if chain.root is not Root.GLOBAL:
                self._variable(frame, chain, use)
            elif not again or any(step.is_open for step in chain.steps):
                self._global(frame, chain, use)

    def _global(self, frame: FrameType, chain: Chain, use: Use) -> None:
        held = frame.f_globals
        self._ledger.mark(held, 0)
        value = held.get(chain.name, ABSENT)
        if value is ABSENT and not callable(frame.f_builtins.get(chain.name)):
            self._add(chain.name, ABSENT, Source(held, ((By.ITEM, chain.name),)), Use.NAMED)
            held = frame.f_builtins
            self._ledger.mark(held, 0)
            value = held.get(chain.name, ABSENT)
        self._walk(chain, use, value, [Source(held, ((By.ITEM, chain.name),))])

    def _variable(self, frame: FrameType, chain: Chain, use: Use) -> None:
        value = frame.f_locals.get(chain.name, ABSENT)
        if value is ABSENT:
            return
        if use is Use.COMPARED and not chain.steps:
            self._ledger.compare(value)
        sources: list[Source] = []
        if chain.root is Root.FREE and not self.frames.is_local(frame, chain.name):
            if chain.name == "__class__":
                return
            sources = [Source(self._ledger.cell(chain.name, value), CONTENT)]
        elif not chain.steps and is_iterator(value) and self._ledger.was_there(value):
            sources = [Source(value, ())] if Use.ITEMS <= use <= Use.OPERAND else []
        elif not chain.steps and not is_container(value) and use < Use.OPERAND:
            return  # a local name: how it came to its value was looked at before
        self._local(chain, use, value, sources)

    def _local(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if id(value) in self._given:
            return
        if not sources and not is_container(value):
            if isinstance(value, torch.Tensor) and not vars(value):
                return
            if not any(step.is_open for step in chain.steps):
                key = (id(value), chain.steps, use, bool(self._moving), self._stores)
                seen = self._seen.get(key)
                if seen is not None and seen() is value:
                    return
                self._seen[key] = Same(value)
        elif id(value) in self._led:
            sources = [*self._led[id(value)][1], *sources]
        self._walk(chain, use, value, sources)

    # --- along a chain ----------------------------------------------------------------------------

    def _walk(
        self, chain: Chain, use: Use, value: Any, sources: list[Source], first: int = 0
    ) -> None:
        """Follow a chain from its step number ``first`` on."""
        for number in range(first, len(chain.steps)):
            at = chain._replace(steps=chain.steps[:number])
            if id(value) in self._given or (first and isinstance(value, torch.Tensor)):
                return
            sources = self._pass(at, use, value, sources)
            step = closed(chain.steps[number], self._frame, self._guarded)
            if step is None:
                self._each(chain, use, value, sources, number)
                return
            self._acted.read(value, str(chain), step.key)
            found = step_of(value, step.key, item=step.item, guarded=self._guarded)
            if found is None:
                self._stop(at, step.key, value, sources)
                return
            for name in found.absent:
                self._add(str(at), ABSENT, name, Use.NAMED)
            if callable(found.value):
                self._method_of(at, value)
            if self._guarded(value):  # its attributes have no names here
                self._ledger.mark(found.value)
            is_slot = found.value is ABSENT or isinstance(found.value, torch.Tensor)
            state = is_slot and id(value) in self._moving
            value, sources = found.value, [] if state else found.sources(sources)
        self._arrive(chain, use, value, sources)

    def _method_of(self, at: Chain, value: Any) -> None:
        """A method of a library's, or of C, reads the object, or moves it on."""
        if is_holder(value):
            self._inside(at, value)
        elif is_iterator(value) and self._ledger.was_there(value):
            self._add(str(at), value, Source(value, ()), Use.WHOLE)

    def _pass(self, at: Chain, use: Use, value: Any, sources: list[Source]) -> list[Source]:
        """Look at what lies on the way; gives the ways to it."""
        if id(value) in self._moving:  # what is no number in it counts one by one
            self._ledger.mark(value, 0)
            return [Source(value, ())]
        if not is_container(value):
            self._arrive(at, use if use is Use.INSIDE else Use.NAMED, value, sources)
            return sources
        self._arrive(at, Use.NAMED, value, sources)
        sources = sources or [Source(value, ())]
        for source in sources if use < Use.NAMED else ():
            self._ledger.notice(Meeting(str(at), value, use, self._where), source)
        return sources

    def _each(self, chain: Chain, use: Use, value: Any, sources: list[Source], number: int) -> None:
        """Go on from every item of a container, or from what a weak reference leads to."""
        if isinstance(value, weakref.ref):
            if self._ledger.was_there(value):
                self._ledger.mark(value())
            self._walk(chain, use, value(), [], number + 1)
            return
        if not is_container(value) or count(value) > PROBED:
            return
        if use < Use.NAMED and number == len(chain.steps) - 1:
            self._arrive(chain, Use.COUNTED, value, sources)
            return
        for key, item in keyed(value):
            below = [Source(s.owner, (*s.path, (By.ITEM, key))) for s in sources]
            steps = (*chain.steps[:number], Step(True, key), *chain.steps[number + 1 :])
            if is_container(item) or number + 1 < len(steps):
                self._walk(chain._replace(steps=steps), use, item, below, number + 1)
        unordered = isinstance(value, (set, frozenset))
        for item in elements(value) if unordered else ():  # no path leads to it
            self._walk(chain, use, item, [], number + 1)

    def _stop(self, at: Chain, key: Any, value: Any, sources: list[Source]) -> None:
        """Code of the object's own, or of C, gives what follows."""
        if self._frame is not None:
            self._cut.add((self._frame.f_code, self._line))
        if is_container(value):
            self._stores += 1  # if it is a method that moves what it holds
            self._arrive(at, WRITES.get(key, Use.WHOLE), value, sources)
            return
        self._method_of(at, value)
        cls = type(value)
        if not isinstance(value, torch.Tensor) and (path := class_path(cls, key)):
            self._add(f"{at}.{key}", of_class(cls, key), Source(cls, path), Use.NAMED)
        if (mine := shadow_of(value, key)) is not None:
            self._add(f"{at}.{key}", ABSENT, mine, Use.NAMED)
        if looks_up_itself(value) and not isinstance(value, WEAK):
            self._inside(at, value)

    def _arrive(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if use is Use.COMPARED:
            self._ledger.compare(value)
        if id(value) in self._given or id(value) in self._moving or is_ours(value):
            return
        if is_container(value):
            self._contents(chain, use, value, sources)
            return
        self.frames.see(value)
        self._class_of(chain, value)
        for source in sources:
            self._add(str(chain), value, source, use)
        if use is Use.INSIDE or (callable(value) and is_holder(value)):
            self._inside(chain, value)
        elif use is Use.OPERAND and is_holder(value):  # which attributes it has counts as well
            whole = Source(value, ((By.SLOT, "__dict__"),))
            self._add(f"vars({chain})", own(value), whole, Use.WHOLE, deep=False)
        for inner in behind(value):
            if self._ledger.was_there(value):
                self._ledger.mark(inner, 0)
            if is_container(inner):
                hidden = [] if id(inner) in self._led else [Source(inner, ())]
                self._contents(chain, Use.WHOLE, inner, hidden)
            else:
                self._add(str(chain), inner, Source(inner, ()), Use.WHOLE)

    def _class_of(self, chain: Chain, value: Any) -> None:
        """The class of a user's object, and its special methods: no name leads to them."""
        cls = type(value)
        plain = of_class(cls, "__class__") is vars(object)["__class__"]
        if plain and is_users(value) and not self._guarded(value):
            source = Source(value, ((By.SLOT, "__class__"),))
            self._add(f"{chain}.__class__", cls, source, Use.NAMED)
        for text, found, source in called_by_others(value, self._classes):
            self._add(text, found, source, Use.NAMED)

    def _contents(self, chain: Chain, use: Use, value: Any, sources: list[Source]) -> None:
        if use > Use.NAMED:
            self._acted.read(value, str(chain))
        if sources:
            known = self._led.setdefault(id(value), (value, []))[1]
            marks = {(id(owner), path) for owner, path in known}
            known += [source for source in sources if (id(source[0]), source[1]) not in marks]
        elif not isinstance(value, tuple) and has_more_than_tensors(value):
            sources = [Source(value, ())]
        for source in sources if use is not Use.NAMED else ():
            self._add(str(chain), value, source, use, deep=use > Use.ITEMS or use < Use.NAMED)
            if use < Use.NAMED:
                self._add(str(chain), value, source, use, deep=False)
        if use is Use.ITEMS and count(value) <= PROBED:
            for key, item in keyed(value):
                below = [Source(s.owner, (*s.path, (By.ITEM, key))) for s in sources]
                if is_container(item):
                    self._contents(chain.then(True, key), Use.NAMED, item, below)

    def _inside(self, chain: Chain | str, value: Any) -> None:
        """All attributes of an object that are plain values or containers."""
        if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or self._guarded(value):
            return
        attributes = step_of(value, "__dict__", item=False, guarded=self._guarded)
        if attributes is None or len(attributes.value) > PROBED:
            return
        for key, item in list(attributes.value.items()):
            self._add(f"{chain}.{key}", item, Source(value, ((By.OWN, key),)), Use.WHOLE)

    def _add(self, text: str, value: Any, source: Source, use: Use, *, deep: bool = True) -> None:
        key = self._ledger.add(Meeting(text, value, use, self._where, deep), source)
        if use < Use.NAMED:
            self._touched.append((key, use))

    def moved(self) -> set[Any]:
        """The places that the step has changed so far."""
        return self._ledger.moved()

    def finish(self, leaves: Sequence[tuple[Leaf, int]]) -> Met:
        """What was read and written, and how often ``+=`` moved an attribute that others watch."""
        functions = self._functions()
        self._led.clear()
        self._frame = None
        return Met(self._ledger.finish(leaves, functions), self._counts, self._ledger.compared)

    def _functions(self) -> list[FunctionType]:
        found = self.frames.functions(everywhere=False)
        if all(cell.within(found) for cell in self._ledger.cells()):
            return found
        return self.frames.functions(everywhere=True)
