"""Traversal of chains, lookup by lookup, with the values on the way logged.

No user code runs: where only user code could compute the next value, the traversal ends.
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
from ...guards.aspects import count, elements, is_buffer, is_container, look, own, values_in
from ...guards.names import By, of_class
from ...objects import is_a, is_gone
from ..chains.chains import MADE, OWN, Chain, ChainStep, Constant, Root, SuperOf, Use, Within
from ..chains.inside import keyed, within
from ..chains.referents import (
    PROBED,
    WEAK,
    WRITES,
    asked_besides,
    asked_by,
    called_by_others,
    closed,
    is_holder,
    is_iterator,
    is_memo,
    is_users,
    referents,
)
from ..chains.resolve import (
    Lookup,
    Source,
    class_of,
    class_path,
    has_attribute,
    is_ours,
    leads_to,
    looks_up_itself,
    runs_users,
    shadow_of,
    step_of,
)
from ..chains.touched import Touches
from ..ops.undo import SupportsKeep
from ..tape.number import node_of
from ..tape.scheduler_writes import SchedulerWrites
from ..tape.watch import is_plain
from .access_log import AccessLog, Meeting
from .frames import IdentityAsked


class Traversal:
    """The traversal of chains during one recording.

    Args:
        guarded: true for an object whose own attributes another watch covers.
        given: the identities of containers among the arguments.
        moving: by identity, containers whose numbers are inputs of the program just now.
        see: called with values that may be functions that run.
    """

    def __init__(
        self,
        access_log: AccessLog,
        guarded: Callable[[object], bool],
        given: set[int],
        moving: Mapping[int, object],
        scheduler_writes: SchedulerWrites,
        see: Callable[[object], None],
    ) -> None:
        self._access_log, self._guarded, self._scheduler_writes, self._see = (
            access_log,
            guarded,
            scheduler_writes,
            see,
        )
        self.given, self.moving = given, moving
        self._classes: set[type] = set()
        self.led: dict[int, tuple[object, list[Source]]] = {}
        """By identity, a container and the sources through which it was reached."""
        self.stores = 0
        """A count of stores, each of which may change where names lead."""
        self.cut: dict[tuple[CodeType, int], dict[object, tuple[Chain, Use]]] = {}
        """By line, the rests of chains behind a value that user code returns."""
        self.asked: dict[tuple[CodeType, int], dict[object, tuple[ChainStep, ...]]] = {}
        """By line, the lookups that `operator.attrgetter` and its like make."""
        self.meet: Callable[[object, SourceLine | None], None] = lambda value, where: None
        """Called with each value at the end of a chain."""
        self.made = self.meet
        """Called with each value without a name, which the step may have made."""
        self.trial: Callable[[], SupportsKeep | None] = lambda: None
        """Gives what is to hear of uses and changes before a line runs, if anything is."""
        self.frame: Any = None
        self.line = 0
        self.where: SourceLine | None = None
        self.touched: Touches = []
        self.put: object = ABSENT
        """The value that a branch of the line stores: a constant, or None for a computed one."""

    def stand(self, frame: FrameType, line: int = 0) -> None:
        """Set the line of ``frame`` to which coming lookups belong, by default the running one."""
        code = frame.f_code
        self.line = line or frame.f_lineno or 0
        self.where = SourceLine(code.co_filename, self.line, code.co_name)
        self.frame = frame

    def follow(
        self, chain: Chain, use: Use, value: object, sources: list[Source], first: int = 0
    ) -> None:
        """Follow a chain from its lookup number ``first`` on."""
        numbers = iter(range(first, len(chain.steps)))
        for number in numbers:
            at = chain._replace(steps=chain.steps[:number])
            if node_of(value) is not None:
                return
            if id(value) in self.given or (first and isinstance(value, torch.Tensor)):
                return
            sources = self._pass(at, use, value, sources)
            if use < Use.NAMED and _is_from_behind(value, chain.steps[number]):
                self._arrive(at, Use.WHOLE, value, sources)
            self._keep_changed(chain, use, value, number)
            step = closed(chain.steps[number], self.frame, self._guarded)
            if step is None:
                self._each(chain, use, value, sources, number)
                return
            self._scheduler_writes.read(value, str(chain), self.frame, step.key)
            self._access_log.meets(value)
            found = self._in_own_dict(chain, value, number)
            if found is not None:
                next(numbers)
            else:
                found = self._step(step, value)
            if found is None:
                self._stop(chain, use, value, sources, number)
                return
            for name in found.absent:
                self.add(str(at), ABSENT, name, Use.NAMED)
            if callable(found.value):
                self._method_of(at, value)
            value, sources = found.value, self._sources(value, found, sources)
        self._arrive(chain, use, value, sources)

    def _sources(self, value: object, found: Lookup, before: list[Source]) -> list[Source]:
        """The sources of what a lookup in ``value`` gave."""
        is_slot = found.value is ABSENT or is_a(found.value, torch.Tensor)
        state = is_slot and id(value) in self.moving
        ways = [] if state else [*found.sources(before), *self._in_dict(value, found)]
        if self._guarded(value):  # its attributes have no names here
            self._access_log.mark(found.value)
            ways += [Source(found.value, ())] if is_buffer(found.value) else []
        return ways

    def _in_own_dict(self, chain: Chain, value: object, number: int) -> Lookup | None:
        """The lookup of ``value.__dict__["name"]``, of the attribute alone; None for another."""
        later = chain.steps[number + 1 : number + 2]
        if chain.steps[number] != OWN or not (later and later[0].item):
            return None
        if isinstance(value, type) or is_container(value) or type(own(value)) is not dict:
            return None
        step = closed(later[0], self.frame, self._guarded)
        if step is None or type(step.key) is not str:
            return None
        return Lookup(own(value).get(step.key, ABSENT), value, ((By.OWN, step.key),))

    def _in_dict(self, value: object, found: Lookup) -> list[Source]:
        """The sources through the dict of the step's own object, which may be shared."""
        by, key = found.path[-1] if found.path else (None, None)
        if by is not By.OWN or found.owner is not value or self._access_log.is_outside(value):
            return []
        return [way.item(key) for way in self._ways(own(value), [])]

    def _method_of(self, at: Chain, value: object) -> None:
        """Log the reads of a method in C or of a library, which may advance an iterator."""
        if is_holder(value):
            self.inside(at, value)
        elif is_iterator(value) and self._access_log.was_there(value):
            self.add(str(at), value, Source(value, ()), Use.WHOLE)

    def _pass(self, at: Chain, use: Use, value: object, sources: list[Source]) -> list[Source]:
        """Log an intermediate value; gives its sources."""
        if id(value) in self.moving:  # its items that are no numbers count one by one
            self._access_log.mark(value, 0)
            return [Source(value, ())]
        if not is_container(value):
            self._arrive(at, Use.NAMED, value, sources)
            return sources
        self._arrive(at, Use.NAMED, value, sources)
        sources = self._ways(value, sources) or [Source(value, ())]
        for source in sources if use < Use.NAMED else ():
            self._access_log.notice(Meeting(str(at), value, use, self.where), source)
        return sources

    def _each(
        self, chain: Chain, use: Use, value: object, sources: list[Source], number: int
    ) -> None:
        """Continue with every item of a container, or the referent of a weak reference."""
        if isinstance(chain.steps[number].key, Within):
            self._within(chain, use, value, number)
            return
        if isinstance(value, weakref.ref):
            self.follow(chain, use, self._referent(value), [], number + 1)
            return
        if not is_container(value) or count(value) > PROBED:
            return
        if use < Use.NAMED and number == len(chain.steps) - 1:
            self._arrive(chain, Use.PLACED, value, sources)
            return
        for key, item in keyed(value):
            below = [source.item(key) for source in sources]
            steps = (*chain.steps[:number], ChainStep(True, key), *chain.steps[number + 1 :])
            if is_container(item) or number + 1 < len(steps):
                self.follow(chain._replace(steps=steps), use, item, below, number + 1)
        unordered = isinstance(value, (set, frozenset))
        for item in elements(value) if unordered else ():  # no path leads to it
            self.follow(chain, use, item, [], number + 1)

    def _referent(self, reference: weakref.ref[Any]) -> object:
        """The referent of a weak reference, marked as old where the reference is."""
        if self._access_log.was_there(reference):
            self._access_log.mark(reference())
        return reference()

    def _step(self, step: ChainStep, value: object) -> Lookup | None:
        """The result of one lookup; None where user code computes it."""
        if step.key is MADE and isinstance(value, weakref.ref):
            return Lookup(self._referent(value))
        if step.key is MADE:  # an instance has the attributes of its class
            return Lookup(value) if isinstance(value, type) else None
        if not isinstance(step.key, SuperOf):
            return step_of(value, step.key, item=step.item, guarded=self._guarded)
        kind = leads_to(self.frame, step.key.kind, self._guarded)
        try:
            return Lookup(super(kind, value)) if isinstance(kind, type) else None
        except TypeError:
            return None

    def _within(self, chain: Chain, use: Use, value: object, number: int) -> None:
        """Continue with a value or its parts, where an operator or a function gave it."""
        step = chain.steps[number + 1] if number + 1 < len(chain.steps) else None
        by = chain.steps[number].key.by
        if step is None or step.item:
            return
        if by is not None and runs_users(leads_to(self.frame, by, self._guarded)):
            return
        for one in within(value):
            if step.is_open or has_attribute(one, step.key):
                self.follow(chain, use, one, self._ways(one, []), number + 1)

    def _cut(self, chain: Chain, use: Use, number: int) -> None:
        """Note the rest of a chain, to follow from the value that user code returns."""
        rest = Chain(Root.RETURNED, str(chain.steps[number].key), chain.steps[number + 1 :])
        if self.frame is not None and (rest.steps or use > Use.AMONG or use < Use.NAMED):
            found = self.cut.setdefault((self.frame.f_code, self.line), {})
            found[use, rest.mark] = rest, use

    def _stop(
        self, chain: Chain, use: Use, value: object, sources: list[Source], number: int
    ) -> None:
        """Handle a lookup that user code or C code computes."""
        at, key = chain._replace(steps=chain.steps[:number]), chain.steps[number].key
        if key is MADE or isinstance(key, SuperOf):
            return
        self._cut(chain, use, number)
        cls = class_of(value, key)
        given = of_class(cls, key) if isinstance(key, str) else None
        for steps in asked_by(given.fget) if isinstance(given, property) else ():
            rest = chain.steps[number + 1 :]
            self.follow(Chain(Root.LOCAL, str(at), (*steps, *rest)), use, value, [])
        if is_container(value):
            self.stores += 1  # the method may change its contents
            self._arrive(at, WRITES.get(key, Use.WHOLE), value, sources)
            return
        self._method_of(at, value)
        if not isinstance(value, torch.Tensor) and (path := class_path(cls, key)):
            self.add(f"{at}.{key}", of_class(cls, key), Source(cls, path), Use.NAMED)
        if (mine := shadow_of(value, key)) is not None:
            self.add(f"{at}.{key}", ABSENT, mine, Use.NAMED)
        if looks_up_itself(value) and not isinstance(value, WEAK):
            self.inside(at, value)

    def _arrive(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> None:
        _refuse_identity(chain, use, value)
        if is_container(value) and use < Use.NAMED:
            self._keep(value)
        self._access_log.which(value, use)
        (self.made if chain.root is Root.RETURNED else self.meet)(value, self.where)
        if use is Use.PLACED and isinstance(value, (list, deque)):
            self._arrive(chain, Use.WHOLE, value, sources)  # it depends on the length
        if id(value) in self.given or id(value) in self.moving or _is_ours(value):
            return
        if is_container(value):
            self._contents(chain, use, value, sources)
            return
        gone = is_gone(value)
        if not gone:
            self._see(value)
            self._asks(value)
            self._class_of(chain, value)
        for source in sources:
            self.add(str(chain), value, source, use)
        if not gone:
            self._arrive_inside(chain, use, value)

    def _keep_changed(self, chain: Chain, use: Use, value: object, number: int) -> None:
        """Keep an object of which the line assigns a part, or a container with its method."""
        assigned = use < Use.NAMED and number == len(chain.steps) - 1
        if assigned or (is_container(value) and not chain.steps[number].item):
            self._keep(value)

    def _keep(self, value: object) -> None:
        if (trial := self.trial()) is not None:
            trial.keep_object(value)

    def _arrive_inside(self, chain: Chain, use: Use, value: object) -> None:
        if use is Use.INSIDE or (callable(value) and is_holder(value)):
            self.inside(chain, value)
        elif use is Use.OPERAND and is_holder(value):  # which attributes it has counts as well
            whole = Source(value, ((By.SLOT, "__dict__"),))
            self.add(f"vars({chain})", own(value), whole, Use.WHOLE, deep=False)
        for inner in referents(value):
            if self._access_log.was_there(value):
                self._access_log.mark(inner, 0)
            if is_container(inner):
                hidden = [] if id(inner) in self.led else [Source(inner, ())]
                self._contents(chain, Use.WHOLE, inner, hidden)
            else:
                self.add(str(chain), inner, Source(inner, ()), Use.WHOLE)

    def _asks(self, value: object) -> None:
        if self.frame is not None and callable(value) and (ways := asked_by(value)):
            found = self.asked.setdefault((self.frame.f_code, self.line), {})
            found.update((steps, steps) for steps in ways)

    def ask(self, chain: Chain, value: object) -> None:
        """Follow the lookups of an `operator.attrgetter` that the line calls."""
        for steps in self.asked.get((self.frame.f_code, self.line), {}).values():
            longer = Chain(chain.root, str(chain), (ChainStep(True, Within(None)), *steps))
            self.follow(longer, Use.WHOLE, value, [])

    def _class_of(self, chain: Chain, value: object) -> None:
        """Log the class of a user's object, and its special methods, which have no names."""
        cls = type(value)
        plain = of_class(cls, "__class__") is vars(object)["__class__"]
        if plain and is_users(value) and not self._guarded(value):
            source = Source(value, ((By.SLOT, "__class__"),))
            self.add(f"{chain}.__class__", cls, source, Use.NAMED)
        for text, found, source in called_by_others(value, self._classes):
            self.add(text, found, source, Use.NAMED)

    def _ways(self, value: object, sources: list[Source]) -> list[Source]:
        """The sources of a container; the step's own object may alias an older one."""
        _, known = self.led.get(id(value), (value, []))
        outer = [source for source in sources if self._access_log.is_outside(source.owner)]
        if outer:  # the step may have stored an alias there
            return [*known, *sources] if all(map(self._access_log.is_own, outer)) else sources
        new = [] if known or not self._access_log.was_there(value) else [Source(value, ())]
        return [*known, *new, *sources]

    def _contents(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> None:
        if use > Use.KEPT:
            self._scheduler_writes.read(value, str(chain), self.frame)
        if sources := self._ways(value, sources):
            known = self.led.setdefault(id(value), (value, []))[1]
            marks = {(id(owner), path) for owner, path in known}
            known += [source for source in sources if (id(source[0]), source[1]) not in marks]
        elif not is_a(value, tuple) and not _are_tensors(value):
            sources = [Source(value, ())]
        for source in sources if use is Use.KEPT else ():
            self._access_log.keep(Meeting(str(chain), value, use, self.where), source)
        for source in sources if use not in (Use.NAMED, Use.KEPT) else ():
            self.add(str(chain), value, source, use, deep=use > Use.ITEMS or use < Use.NAMED)
            if use < Use.NAMED:
                self.add(str(chain), value, source, use, deep=False)
        if use is Use.ITEMS and count(value) <= PROBED:
            for key, item in keyed(value):
                below = [source.item(key) for source in sources]
                if is_container(item):
                    self._contents(chain.then(True, key), Use.NAMED, item, below)

    def inside(self, chain: Chain | str, value: object, *, perhaps: bool = False) -> None:
        """Log all attributes of an object. ``perhaps``: where the step does not write them."""
        if isinstance(value, (torch.Tensor, torch.nn.Module, type)) or self._guarded(value):
            return
        attributes = step_of(value, "__dict__", item=False, guarded=self._guarded)
        if attributes is None or len(attributes.value) > PROBED:
            return
        for key, item in list(attributes.value.items()):
            if not is_memo(value, key):
                source = Source(value, ((By.OWN, key),))
                self.add(f"{chain}.{key}", item, source, Use.WHOLE, perhaps=perhaps)
        for words, holder, key in asked_besides(value):
            source = Source(holder, ((By.OWN, key),))
            self.add(f"{chain}.{words}.{key}", own(holder)[key], source, Use.WHOLE)

    def add(
        self,
        text: str,
        value: object,
        source: Source,
        use: Use,
        *,
        deep: bool = True,
        perhaps: bool = False,
    ) -> None:
        use = Use.COUNTED if use is Use.PLACED else use
        key = self._access_log.add(
            Meeting(text, value, use, self.where, deep), source, perhaps=perhaps
        )
        if (trial := self.trial()) is not None and self._access_log.was_there(value):
            trial.meets(value)
        if use < Use.NAMED:
            self.touched.append((key, use))
        if use is Use.PERHAPS and not _may_be_put(self.put, value):
            self.touched[-1] = (key, Use.STORED)


def _are_tensors(container: object) -> bool:
    return all(isinstance(item, torch.Tensor) for item in values_in(container))


def _may_be_put(put: object, value: object) -> bool:
    """True where the stored ``put`` may equal the present ``value``.

    `ABSENT` for an unknown value, None for a computed one.
    """
    if isinstance(put, Constant):
        return look(put.value) == look(value)
    return put is ABSENT or is_plain(value)


def _refuse_identity(chain: Chain, use: Use, value: object) -> None:
    """Refuse an identity comparison of a symbolic number: the call runs again without.

    Raises:
        IdentityAsked: it is asked.
    """
    if use is Use.COMPARED and node_of(value) is not None:
        raise IdentityAsked(f"{chain} is asked which object it is")


def _is_ours(value: object) -> bool:
    """True for a patch, and for a symbolic number, which is an input."""
    return node_of(value) is not None or is_ours(value)


def _is_from_behind(value: object, step: ChainStep) -> bool:
    """True for a negative index into a list."""
    return isinstance(value, (list, deque)) and type(step.key) is int and step.key < 0
