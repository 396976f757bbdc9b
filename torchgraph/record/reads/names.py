"""What the user's code reads by name while a step is recorded: it becomes part of the guards.

The chains of each line (see `scan`) are looked at just before it runs (see `frames`), step by step
(see `resolve`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MappingProxyType
from weakref import proxy

import torch

from ...guards import ABSENT
from ...guards.looks import Same, is_container, own
from ...guards.names import CONTENT, By
from ...live.step import Leaf
from ..chains.behind import is_iterator
from ..chains.chains import Chain, Line, Reads, Root, Use
from ..chains.inside import containers_in, objects_in
from ..chains.resolve import Source, leads_to
from ..chains.touched import Counts, Met, RowKey, Touches
from ..host.trees import Trees
from ..tape.acted import Acted
from .frames import Frames
from .ledger import Ledger
from .uses import Looked
from .walk import Walk

_LOST = (
    "Python's trace function was taken away or replaced while the step ran, by sys.settrace, a "
    "debugger or a RecursionError that is caught: what it read then is not known"
)


class NameWatch:
    """Looks at what the user's lines read by name during one recording.

    Args:
        given: the arguments of the call: what is in containers among them is in its key.
        guarded: true for an object whose own attributes others watch.
        bound: the function of the step, and what it is bound to.
        moving: by identity, containers whose numbers are inputs of the program just now.
    """

    def __init__(
        self,
        given: object,
        guarded: Callable[[object], bool],
        bound: Sequence[object] = (),
        moving: Mapping[int, object] = MappingProxyType({}),
        acted: Acted | None = None,
    ) -> None:
        self._guarded, self._moving = guarded, moving
        self._ledger = Ledger(guarded, set(objects_in(given)))
        self._counts: Counts = Counter()
        self._seen: dict[tuple[object, ...], Same] = {}
        self._once: set[tuple[CodeType, int, bool, int]] = set()
        self.frames = Frames(proxy(self))
        held = set(map(id, containers_in(given)))
        self._walk = Walk(self._ledger, guarded, held, moving, acted or Acted(), self.frames.see)
        for value in bound:
            self._ledger.mark(value)

    # --- line by line -----------------------------------------------------------------------------

    @contextmanager
    def active(self, give_up: Callable[..., None] | None = None) -> Iterator[None]:
        """Look at what the block reads, in this thread; ``give_up`` is told why nobody could."""
        try:
            with self._ledger.listening(), self.frames.active():
                yield
        except BaseException:
            self._walk.frame = None  # its error leads to the frame, which leads here
            raise
        if self.frames.lost and give_up is not None:
            give_up(_LOST, passing=True)

    def let_go(self) -> list[object]:
        """Hold no frame of the user's, in which its values lie; gives what holds other values."""
        self._walk.frame = None
        own = [self, *(one for one in vars(self).values() if hasattr(one, "__dict__"))]
        inner = [value for one in own for value in vars(one).values()]
        return [*inner, *(v for one in inner for v in getattr(one, "__dict__", {}).values())]

    def before(self, frame: FrameType, number: int, line: Line) -> Touches:
        """Look at what a line reads; gives room for what it replaces."""
        if line.chains:
            self._read(frame, line.chains, number)
        return []

    def stored(self, frame: FrameType, found: Touches, stores: Reads) -> None:
        """Look at what is about to be replaced."""
        self._walk.stand(frame)
        self._walk.touched = found
        self._walk.stores += 1
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

    def returned(self, frame: FrameType, line: Line, value: object) -> None:
        """Look at what a function has returned that a line of ``frame`` calls."""
        if isinstance(value, torch.Tensor):
            return
        self._walk.stand(frame)
        for chain, use in line.returned:
            self._local(chain, use, value, [])

    def handed(self, frame: FrameType, values: list[object]) -> None:
        """Look at all attributes of what a library's function is called with."""
        for value in values:
            if self._ledger.was_there(value) and not is_container(value):
                self._walk.stand(frame)
                self._walk.inside(type(value).__name__, value)

    def is_cut(self, frame: FrameType, number: int) -> bool:
        """True where code of the user's own gives what the line goes on with."""
        return (frame.f_code, number) in self._walk.cut

    def used(self, frame: FrameType, found: Touches, looked: Looked) -> None:
        """Look at a value on the stack, or at what lies there in it."""
        value, use, steps = looked
        if use is Use.KEPT:
            self._ledger.which(value, use)
        if isinstance(value, torch.Tensor) and not own(value):
            return
        self._walk.stand(frame)
        self._walk.touched = found
        self._walk.stores += use < Use.NAMED
        self._local(Chain(Root.RETURNED, "(...)", steps), use, value, [])

    def _read(self, frame: FrameType, chains: Reads, line: int = 0) -> None:
        at = (frame.f_code, line, bool(self._moving), self._walk.stores)
        again = at in self._once
        self._once.add(at)
        self._walk.stand(frame, line)
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
            self._walk.add(chain.name, ABSENT, Source(held, ((By.ITEM, chain.name),)), Use.NAMED)
            held = frame.f_builtins
            self._ledger.mark(held, 0)
            value = held.get(chain.name, ABSENT)
        self._walk.walk(chain, use, value, [Source(held, ((By.ITEM, chain.name),))])

    def _variable(self, frame: FrameType, chain: Chain, use: Use) -> None:
        value = frame.f_locals.get(chain.name, ABSENT)
        if value is ABSENT:
            return
        if not chain.steps:
            self._ledger.which(value, use)
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

    def _local(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> None:
        if id(value) in self._walk.given:
            return
        if not sources and not is_container(value):
            if isinstance(value, torch.Tensor) and not vars(value):
                return
            if not any(step.is_open for step in chain.steps):
                key = (id(value), chain.steps, use, bool(self._moving), self._walk.stores)
                seen = self._seen.get(key)
                if seen is not None and seen() is value:
                    return
                self._seen[key] = Same(value)
        elif id(value) in self._walk.led:
            sources = [*self._walk.led[id(value)][1], *sources]
        self._walk.walk(chain, use, value, sources)

    def trees(self) -> Trees:
        """To make again what the step leaves, but for what was there before."""
        return Trees(self._ledger.old)

    def pinned(self) -> list[torch.Tensor]:
        """The tensors that names lead to, after the step as before."""
        return self._ledger.pinned()

    def moved(self) -> set[RowKey]:
        """The places that the step has changed so far."""
        return self._ledger.moved()

    def finish(self, leaves: Sequence[tuple[Leaf, int]], returned: object) -> Met:
        """What was read and written, and how often ``+=`` moved an attribute that others watch."""
        functions = self._functions()
        self._walk.led.clear()
        self._walk.frame = None
        touched = self._ledger.finish(leaves, functions, returned)
        return Met(touched, self._counts, self._ledger.compared)

    def _functions(self) -> list[FunctionType]:
        found = self.frames.functions(everywhere=False)
        if all(cell.within(found) for cell in self._ledger.cells()):
            return found
        return self.frames.functions(everywhere=True)
