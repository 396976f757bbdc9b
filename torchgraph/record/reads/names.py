"""Guards on what the user's code reads by name while a step is recorded.

The chains of each line (see `scan`) are resolved before it runs (see `frames`), lookup by lookup
(see `resolve`).
"""

from __future__ import annotations

import functools
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, MappingProxyType
from weakref import proxy

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..._torch import storage_id
from ..._torch.listening import listening
from ...guards import ABSENT
from ...guards.aspects import Same, is_container
from ...guards.items import Items
from ...guards.names import CONTENT, By
from ...ir.aliasing import has_strides
from ...live.step import Leaf
from ...objects import is_a
from ...reasons import Because, Reason
from ..chains.chains import EACH, Chain, Line, Reads, Root, Use
from ..chains.inside import containers_in, objects_in
from ..chains.referents import is_iterator, is_users
from ..chains.resolve import Source, imported, leads_to
from ..chains.touched import Counts, Met, Touches
from ..tape.scheduler_writes import SchedulerWrites
from .access_log import AccessLog
from .frames import Frames
from .known import unnoticed
from .traversal import Traversal

_LOST = (
    "Python's trace function was taken away or replaced while the step ran, by sys.settrace, a "
    "debugger or a RecursionError that is caught: what it read then is not known"
)


_FAILED = (
    "torchgraph fails to look at what the step reads ({error}): this is a fault of torchgraph, "
    "please report it"
)
_UNKNOWN = (
    "how Python {version} runs code is not known to this version of torchgraph: what a step reads "
    "cannot be told there (`torchgraph doctor` says more), so that no step has a program"
)


@functools.cache
def unread() -> tuple[int, ...]:
    """The lines of `known` whose reads go unnoticed: none, where this Python works."""
    return tuple(unnoticed(_read_in))


def _read_in(function: Callable[[], object]) -> Callable[[], list[object]]:
    watch = NameWatch((), lambda value: False, [function])
    with listening(lambda op, args, kwargs: op(*args, **kwargs)), watch.active():
        function()
    names = [one.name for one in watch.finish([], None).touched if one.read]
    return lambda: [name.owner() for name in names if not name.holds()]


class NameWatch:
    """The watch of one recording on reads and writes by name in the user's lines.

    Args:
        given: the arguments of the call, whose containers are part of its key.
        guarded: true for an object whose own attributes another watch covers.
        bound: the function of the step, and the objects bound to it.
        moving: by identity, containers whose numbers are inputs of the program just now.
        wrote: as `AccessLog` has it.
    """

    def __init__(
        self,
        given: object,
        guarded: Callable[[object], bool],
        bound: Sequence[object] = (),
        moving: Mapping[int, object] = MappingProxyType({}),
        scheduler_writes: SchedulerWrites | None = None,
        wrote: Callable[[object, str], bool] = lambda owner, name: False,
    ) -> None:
        self._guarded, self._moving = guarded, moving
        self.access_log = AccessLog(guarded, set(objects_in(given)), wrote)
        self._counts: Counts = Counter()
        self._seen: dict[tuple[object, ...], Same] = {}
        self._lists: dict[tuple[object, ...], tuple[int, int, Items | None]] = {}
        """By line and chain, an identity snapshot of the container that it has read."""
        self._once: set[tuple[CodeType, int, bool, int]] = set()
        self.frames = Frames(proxy(self))
        held = set(map(id, containers_in(given)))
        self._scheduler_writes = scheduler_writes or SchedulerWrites()
        self.follow = Traversal(
            self.access_log, guarded, held, moving, self._scheduler_writes, self.frames.see
        )
        for value in bound:
            self.access_log.mark(value)
            self.frames.see(value)

    # --- line by line -----------------------------------------------------------------------------

    @contextmanager
    def active(self, give_up: Callable[..., None] | None = None) -> Iterator[None]:
        """Watch the block, in this thread; ``give_up`` is called where that fails."""
        if give_up is not None and unread():
            give_up(_UNKNOWN.format(version=platform.python_version()), lenient=True)
        try:
            with self.frames.active():
                yield
            self.access_log.ends()
        except BaseException:
            self.follow.frame = None  # its error leads to the frame, which leads here
            raise
        if self.frames.lost and give_up is not None:
            give_up(Because(Reason.AROUND, _LOST), passing=True)
        if (failed := self.frames.failed) is not None and give_up is not None:
            why = _FAILED.format(error=f"{type(failed).__name__}: {failed}")
            give_up(Because(Reason.FAULT, why), lenient=True)

    def let_go(self) -> list[object]:
        """Drop the frames of the user's; gives the containers that still hold values."""
        self.follow.frame = None
        own = [self, *(one for one in vars(self).values() if hasattr(one, "__dict__"))]
        inner = [value for one in own for value in vars(one).values()]
        return [*inner, *(v for one in inner for v in getattr(one, "__dict__", {}).values())]

    def before(self, frame: FrameType, number: int, line: Line) -> Touches:
        """Resolve the reads of a line, and its assignments; gives the rows of these."""
        if line.chains:
            self._read(frame, line.chains, number)
        found: Touches = []
        if line.stores:
            self._store(frame, found, line)
        return found

    def _store(self, frame: FrameType, found: Touches, line: Line) -> None:
        """Log a place that is about to be assigned."""
        self.follow.stand(frame)
        self.follow.touched = found
        self.follow.stores += 1
        for chain, use in line.stores:
            if use is Use.COUNTED:
                self._count(frame, chain)
            self.follow.put = line.put.get(chain.mark, ABSENT)
            self._look(frame, chain, use)

    def _count(self, frame: FrameType, chain: Chain) -> None:
        """Count ``self.calls += 1`` of an object whose attributes another watch covers."""
        value = leads_to(frame, chain._replace(steps=chain.steps[:-1]), self._guarded)
        if chain.steps and value is not ABSENT and self._guarded(value):
            self._counts[id(value), chain.steps[-1].key] += 1

    def after(self, frame: FrameType, line: Line, found: Touches) -> None:
        """Resolve names bound by the line, and its assignments."""
        if line.inner:
            self._read(frame, line.inner)
        self._written(frame, found)

    def again(self, frame: FrameType, found: Touches) -> None:
        """Update assigned rows before the line calls a function of the user's."""
        self.follow.stores += 1
        self._written(frame, found)

    def _written(self, frame: FrameType, found: Touches) -> None:
        for key, use in found:
            self.access_log.written(key, use, lambda name: frame.f_locals.get(name, ABSENT))

    def returned(
        self, frame: FrameType, line: Line, value: object, found: Touches, by: str
    ) -> None:
        """Resolve reads of a value that a function returned to a line of ``frame``."""
        if is_a(value, torch.Tensor):
            if any(use is Use.KEPT for _, use in line.returned):
                self.access_log.which(value, Use.KEPT)
            return
        self.frames.see(value)
        cut = self.follow.cut.get((frame.f_code, frame.f_lineno or 0), {})
        for chain, use in (*line.returned, *cut.values()):
            if by:  # not all that the line calls
                chain = chain._replace(name=f"{by}()")
            self.looked_up(frame, value, chain, use, found)

    def looked_up(
        self, frame: FrameType, value: object, chain: Chain, use: Use, found: Touches
    ) -> None:
        """Log a lookup or an assignment on a value without a name."""
        self.follow.stand(frame)
        self.follow.touched = found
        self.follow.stores += use < Use.NAMED
        self._local(chain, use, value, [])

    def handed(self, frame: FrameType, values: list[object], *, known: bool) -> None:
        """Log all attributes of the arguments of a library function.

        ``known``: it does read them. Else it may, where they are the user's.
        """
        for value in values:
            if is_container(value) or not self.access_log.was_there(value):
                continue
            moves = isinstance(value, (Optimizer, LRScheduler, GradScaler))
            if known or (is_users(value) and not moves and not callable(value)):
                self.follow.stand(frame)
                self.follow.inside(type(value).__name__, value, perhaps=not known)

    def _read(self, frame: FrameType, chains: Reads, line: int = 0) -> None:
        at = (frame.f_code, line, bool(self._moving), self.follow.stores)
        again = at in self._once
        self._once.add(at)
        self.follow.stand(frame, line)
        for chain, use in chains:
            known = again and chain.root is Root.GLOBAL
            if not known or any(step.is_open for step in chain.steps):
                self._look(frame, chain, use)
        for chain, _ in chains if (frame.f_code, self.follow.line) in self.follow.asked else ():
            value = leads_to(frame, chain, self._guarded)
            if value is not ABSENT and not isinstance(value, torch.Tensor):
                self.follow.ask(chain, value)

    def _look(self, frame: FrameType, chain: Chain, use: Use) -> None:
        if chain.root is Root.MODULE:
            self.follow.follow(chain, use, imported(frame, chain.name), [])
        elif chain.root is Root.GLOBAL:
            self._global(frame, chain, use)
        else:
            self._variable(frame, chain, use)

    def _global(self, frame: FrameType, chain: Chain, use: Use) -> None:
        held = frame.f_globals
        self.access_log.mark(held, 0)
        value = held.get(chain.name, ABSENT)
        if value is ABSENT and not callable(frame.f_builtins.get(chain.name)):
            self.follow.add(chain.name, ABSENT, Source(held, ((By.ITEM, chain.name),)), Use.NAMED)
            held = frame.f_builtins
            self.access_log.mark(held, 0)
            value = held.get(chain.name, ABSENT)
        self.follow.follow(chain, use, value, [Source(held, ((By.ITEM, chain.name),))])

    def _variable(self, frame: FrameType, chain: Chain, use: Use) -> None:
        value = frame.f_locals.get(chain.name, ABSENT)
        if value is ABSENT:
            return
        arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        is_made = chain.root is not Root.FREE and chain.name not in arguments
        (self.follow.made if is_made else self.follow.meet)(value, self.follow.where)
        if not chain.steps:
            self.access_log.which(value, use)
        sources: list[Source] = []
        if chain.root is Root.FREE and not self.frames.is_local(frame, chain.name):
            if chain.name == "__class__":
                return
            sources = [Source(self.access_log.cell(chain.name, value), CONTENT)]
        elif not chain.steps and is_iterator(value) and self.access_log.was_there(value):
            sources = [Source(value, ())] if Use.ITEMS <= use <= Use.OPERAND else []
        elif not chain.steps and not is_container(value) and use < Use.OPERAND:
            return  # a local name: its assignment was traced before
        self._local(chain, use, value, sources)

    def _local(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> None:
        if id(value) in self.follow.given:
            return
        if not sources and not is_container(value):
            if is_a(value, torch.Tensor) and not vars(value):
                return
            if not any(step.is_open for step in chain.steps):
                key = (id(value), chain.steps, use, bool(self._moving), self.follow.stores)
                seen = self._seen.get(key)
                if seen is not None and seen() is value:
                    return
                self._seen[key] = Same(value)
        elif id(value) in self.follow.led:
            sources = [*self.follow.led[id(value)][1], *sources]
        if use >= Use.NAMED and is_container(value) and self._is_known(chain, use, value, sources):
            return
        self.follow.follow(chain, use, value, sources)

    def _is_known(self, chain: Chain, use: Use, value: object, sources: list[Source]) -> bool:
        """True where the line has read this before, as in a loop, and nothing has changed.

        A container is looked at item by item: a loop over it would do so once for each of them.
        """
        follow = self.follow
        if any(step.is_open and step.key is not EACH for step in chain.steps):
            return False  # where it goes on from there may be another place now
        now = bool(self._moving), self._scheduler_writes.count
        at = (follow.line, follow.frame.f_code, chain.mark, use, id(value), now)
        again = at in self._lists
        ways, stores, items = self._lists.get(at, (0, 0, None))
        # Attributes of objects on a chain may have been assigned since.
        same = items is not None and (items.plain or stores == follow.stores) and items.hold()
        if same and ways == len(sources):
            return True
        self._lists[at] = len(sources), follow.stores, Items.of(value) if again else None
        return False

    def finish(self, leaves: Sequence[tuple[Leaf, int]], returned: object) -> Met:
        """The reads and writes, and the counts of ``+=`` on attributes of other watches."""
        functions = self.frames.functions()
        if not all(cell.within(functions) for cell in self.access_log.cells()):
            functions += self.frames.nameless()
        self.follow.led.clear()
        self._lists.clear()
        self.follow.frame = None
        touched = self.access_log.finish(leaves, functions, returned)
        inputs = [leaf.value for leaf, _ in leaves if is_a(leaf.value, torch.Tensor)]
        storages = frozenset(storage_id(tensor) for tensor in inputs if has_strides(tensor))
        return Met(touched, self._counts, self.access_log.compared, storages)
