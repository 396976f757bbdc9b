"""The way along a chain, step by step, and what is looked at where it leads.

Nothing of the user's runs: where only code of his could say what follows, the way ends.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import torch

from ...errors import SourceLine
from ...guards import ABSENT
from ...guards.looks import count, elements, is_container, own
from ...guards.names import By, of_class
from ..chains.behind import (
    PROBED,
    WEAK,
    WRITES,
    asked_besides,
    behind,
    called_by_others,
    closed,
    is_holder,
    is_iterator,
    is_memo,
    is_users,
)
from ..chains.chains import Chain, ChainStep, Use
from ..chains.inside import has_more_than_tensors, keyed
from ..chains.resolve import (
    Lookup,
    Source,
    class_path,
    is_ours,
    looks_up_itself,
    shadow_of,
    step_of,
)
from ..chains.touched import Touches
from ..tape.acted import Acted
from .ledger import Ledger, Meeting


class Walk:
    """Follows chains step by step, during one recording.

    Args:
        guarded: true for an object whose own attributes others watch.
        given: the identities of containers among the arguments.
        moving: by identity, containers whose numbers are inputs of the program just now.
        see: told of what may be a function that runs.
    """

    def __init__(
        self,
        ledger: Ledger,
        guarded: Callable[[object], bool],
        given: set[int],
        moving: Mapping[int, object],
        acted: Acted,
        see: Callable[[object], None],
    ) -> None:
        self._ledger, self._guarded, self._acted, self._see = ledger, guarded, acted, see
        self.given, self.moving = given, moving
        self._classes: set[type] = set()
        self.led: dict[int, tuple[object, list[Source]]] = {}
        """How a container was reached."""
        self.stores = 0
        """How often something was stored: names may lead elsewhere since."""
        self.cut: set[tuple[CodeType, int]] = set()
        """Lines in which a name leads to what code of the user's own gives."""
        self.frame: Any = None
        self.line = 0
        self.where: SourceLine | None = None
        self.touched: Touches = []

    def stand(self, frame: FrameType, line: int = 0) -> None:
        """What is looked at next, a line of ``frame`` reads: the one that runs, or this one."""
        code = frame.f_code
        self.line = line or frame.f_lineno or 0
        self.where = SourceLine(code.co_filename, self.line, code.co_name)
        self.frame = frame

    def walk(
        self, chain: Chain, use: Use, value: object, sources: list[Source], first: int = 0
    ) -> None:
        """Follow a chain from its step number ``first`` on."""
        for number in range(first, len(chain.steps)):
            at = chain._replace(steps=chain.steps[:number])
            if id(value) in self.given or (first and isinstance(value, torch.Tensor)):
                return
            sources = self._pass(at, use, value, sources)
            if use < Use.NAMED and _is_from_behind(value, chain.steps[number]):
                self._arrive(at, Use.WHOLE, value, sources)
            step = closed(chain.steps[number], self.frame, self._guarded)
            if step is None:
                self._each(chain, use, value, sources, number)
                return
            self._acted.read(value, str(chain), step.key)
            found = step_of(value, step.key, item=step.item, guarded=self._guarded)
            if found is None:
                self._stop(at, step.key, value, sources)
                return
            for name in found.absent:
                self.add(str(at), ABSENT, name, Use.NAMED)
            if callable(found.value):
                self._method_of(at, value)
            if self._guarded(value):  # its attributes have no names here
                self._ledger.mark(found.value)
            is_slot = found.value is ABSENT or isinstance(found.value, torch.Tensor)
            state = is_slot and id(value) in self.moving
            ways = [] if state else [*found.sources(sources), *self._in_dict(value, found)]
            value, sources = found.value, ways
        self._arrive(chain, use, value, sources)

    def _in_dict(self, value: object, found: Lookup) -> list[Source]:
        """The ways through the dict of an object that the step has made: it may be another's."""
        by, key = found.path[-1] if found.path else (None, None)
        if by is not By.OWN or found.owner is not value or self._ledger.is_outside(value):
            return []
        ways = self._ways(own(value), [])
        return [Source(owner, (*path, (By.ITEM, key))) for owner, path in ways]

    def _method_of(self, at: Chain, value: object) -> None:
        """A method of a library's, or of C, reads the object, or moves it on."""
        if is_holder(value):
            self.inside(at, value)
        elif is_iterator(value) and self._ledger.was_there(value):
            self.add(str(at), value, Source(value, ()), Use.WHOLE)

    def _pass(self, at: Chain, use: Use, value: object, sources: list[Source]) -> list[Source]:
        """Look at what lies on the way; gives the ways to it."""
        if id(value) in self.moving:  # what is no number in it counts one by one
            self._ledger.mark(value, 0)
            return [Source(value, ())]
        if not is_container(value):
            self._arrive(at, use if use is Use.INSIDE else Use.NAMED, value, sources)
            return sources
        self._arrive(at, Use.NAMED, value, sources)
        sources = self._ways(value, sources) or [Source(value, ())]
        for source in sources if use < Use.NAMED else ():
            self._ledger.notice(Meeting(str(at), value, use, self.where), source)
        return sources

    def _each(
        self, chain: Chain, use: Use, value: object, sources: list[Source], number: int
    ) -> None:
        """Go on from every item of a container, or from what a weak reference leads to."""
        if isinstance(value, weakref.ref):
            if self._ledger.was_there(value):
                self._ledger.mark(value())
            self.walk(chain, use, value(), [], number + 1)
            return
        if not is_container(value) or count(value) > PROBED:
            return
        if use < Use.NAMED and number == len(chain.steps) - 1:
            self._arrive(chain, Use.PLACED, value, sources)
            return
        for key, item in keyed(value):
            below = [Source(s.owner, (*s.path, (By.ITEM, key))) for s in sources]
            steps = (*chain.steps[:number], ChainStep(True, key), *chain.steps[number + 1 :])
            if is_container(item) or number + 1 < len(steps):
                self.walk(chain._replace(steps=steps), use, item, below, number + 1)
        unordered = isinstance(value, (set, frozenset))
        for item in elements(value) if unordered else ():  # no path leads to it
            self.walk(chain, use, item, [], number + 1)

    def _stop(self, at: Chain, key: Any, value: object, sources: list[Source]) -> None:
        """Code of the object's own, or of C, gives what follows."""
        if self.frame is not None:
            self.cut.add((self.frame.f_code, self.line))
        if is_container(value):
            self.stores += 1  # if it is a method that moves what it holds
            self._arrive(at, WRITES.get(key, Use.WHOLE), value, sources)
            return
        self._method_of(at, value)
        cls = type(value)
        if not isinstance(value, torch.Tensor) and (path := class_path(cls, key)):
            self.add(f"{at}.{key}", of_class(cls, key), Source(cls, path), Use.NAMED)
        if (mine := shadow_of(value, key)) is not None:
            self.add(f"{at}.{key}", ABSENT, mine, Use.NAMED)
        if looks_up_itself(value) and not isinstance(value, WEAK):
            self.inside(at, value)

    def _arrive(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> None:
        self._ledger.which(value, use)
        if use is Use.PLACED and isinstance(value, (list, deque)):
            self._arrive(chain, Use.WHOLE, value, sources)  # it goes by how many there are
        if id(value) in self.given or id(value) in self.moving or is_ours(value):
            return
        if is_container(value):
            self._contents(chain, use, value, sources)
            return
        self._see(value)
        self._class_of(chain, value)
        for source in sources:
            self.add(str(chain), value, source, use)
        if use is Use.INSIDE or (callable(value) and is_holder(value)):
            self.inside(chain, value)
        elif use is Use.OPERAND and is_holder(value):  # which attributes it has counts as well
            whole = Source(value, ((By.SLOT, "__dict__"),))
            self.add(f"vars({chain})", own(value), whole, Use.WHOLE, deep=False)
        for inner in behind(value):
            if self._ledger.was_there(value):
                self._ledger.mark(inner, 0)
            if is_container(inner):
                hidden = [] if id(inner) in self.led else [Source(inner, ())]
                self._contents(chain, Use.WHOLE, inner, hidden)
            else:
                self.add(str(chain), inner, Source(inner, ()), Use.WHOLE)

    def _class_of(self, chain: Chain, value: object) -> None:
        """The class of a user's object, and its special methods: no name leads to them."""
        cls = type(value)
        plain = of_class(cls, "__class__") is vars(object)["__class__"]
        if plain and is_users(value) and not self._guarded(value):
            source = Source(value, ((By.SLOT, "__class__"),))
            self.add(f"{chain}.__class__", cls, source, Use.NAMED)
        for text, found, source in called_by_others(value, self._classes):
            self.add(text, found, source, Use.NAMED)

    def _ways(self, value: object, sources: list[Source]) -> list[Source]:
        """To a container; what the step has made may hold one that was there before."""
        if any(self._ledger.is_outside(source.owner) for source in sources):
            return sources
        _, known = self.led.get(id(value), (value, []))
        new = [] if known or not self._ledger.was_there(value) else [Source(value, ())]
        return [*known, *new, *sources]

    def _contents(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> None:
        if use > Use.KEPT:
            self._acted.read(value, str(chain))
        if sources := self._ways(value, sources):
            known = self.led.setdefault(id(value), (value, []))[1]
            marks = {(id(owner), path) for owner, path in known}
            known += [source for source in sources if (id(source[0]), source[1]) not in marks]
        elif not isinstance(value, tuple) and has_more_than_tensors(value):
            sources = [Source(value, ())]
        for source in sources if use is Use.KEPT else ():
            self._ledger.keep(Meeting(str(chain), value, use, self.where), source)
        for source in sources if use not in (Use.NAMED, Use.KEPT) else ():
            self.add(str(chain), value, source, use, deep=use > Use.ITEMS or use < Use.NAMED)
            if use < Use.NAMED:
                self.add(str(chain), value, source, use, deep=False)
        if use is Use.ITEMS and count(value) <= PROBED:
            for key, item in keyed(value):
                below = [Source(s.owner, (*s.path, (By.ITEM, key))) for s in sources]
                if is_container(item):
                    self._contents(chain.then(True, key), Use.NAMED, item, below)

    def inside(self, chain: Chain | str, value: object) -> None:
        """All attributes of an object that are plain values or containers."""
        if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or self._guarded(value):
            return
        attributes = step_of(value, "__dict__", item=False, guarded=self._guarded)
        if attributes is None or len(attributes.value) > PROBED:
            return
        for key, item in list(attributes.value.items()):
            if not is_memo(value, key):
                self.add(f"{chain}.{key}", item, Source(value, ((By.OWN, key),)), Use.WHOLE)
        for words, holder, key in asked_besides(value):
            source = Source(holder, ((By.OWN, key),))
            self.add(f"{chain}.{words}.{key}", own(holder)[key], source, Use.WHOLE)

    def add(self, text: str, value: object, source: Source, use: Use, *, deep: bool = True) -> None:
        use = Use.COUNTED if use is Use.PLACED else use
        key = self._ledger.add(Meeting(text, value, use, self.where, deep), source)
        if use < Use.NAMED:
            self.touched.append((key, use))


def _is_from_behind(value: object, step: ChainStep) -> bool:
    """True for an item of a list that is counted from its end."""
    return isinstance(value, (list, deque)) and type(step.key) is int and step.key < 0
