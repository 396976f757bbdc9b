"""Symbolic numbers that outlive the optimizer's step: in a user's list, a global, a cache.

Another step leaves another number there, which no program does: it is valid for this one alone.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import CellType, FrameType, MemberDescriptorType
from typing import Any
from weakref import ref

from ...guards.aspects import base_of, elements, entries_in
from ...objects import is_a
from ...structure.kinds import kind_of
from ..chains.resolve import is_library_file
from ..tape import number
from ..tape.freeze import freeze
from ..tape.number import Integer, Number

_DEEPEST = 4
"""Limit of nested tuples that are rebuilt. Numbers beyond it compute as plain ones, too."""

_HEAP_TYPE = 1 << 9
"""The flag of classes that Python code has made."""

_Plain = dict[int, Any]
"""By the identity of a number, its plain replacement."""


class Leaked:
    """The symbolic numbers made while optimizers step, by weak references."""

    def __init__(self) -> None:
        self._made: list[ref[Number | Integer]] = []
        self.pausing = False
        """True while a step runs its closure, after which its lines go on with their numbers."""
        self.let_go: Callable[[], Collection[object]] = tuple
        """Gives the containers in which the recording itself holds values."""

    def followed(self) -> AbstractContextManager[None]:
        """Collect the numbers of the block; `plain_again` has to come after it."""
        return number.followed(self._made)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Replace numbers that outlive the block by plain ones."""
        with number.followed(self._made):
            try:
                yield
            except BaseException:  # its traceback holds the lines of the step
                self.freeze()
                raise
        if not self.pausing:
            self._stand_still()

    def plain_again(self, seen_to: Iterable[object]) -> None:
        """Replace symbolic numbers in user objects by plain ones, after the step.

        Args:
            seen_to: objects whose contents replays write again.
        """
        for holder in seen_to if self._made else ():
            _refill(holder)
        self._stand_still()

    def _stand_still(self) -> None:
        besides = self.let_go()
        if found := self._alive():
            held, holders = _held(found, besides)
            for one in held:
                one.node.exact()
            _replace(holders, {id(one): one.node.value for one in found})
            holders.clear()
        self.freeze()

    def freeze(self) -> None:
        """Freeze the numbers that are still alive."""
        for one in self._alive():
            freeze(one)
        self._made.clear()

    def _alive(self) -> list[Number | Integer]:
        return [one for held in self._made if (one := held()) is not None]


def _refill(holder: object) -> None:
    """Replace the symbolic numbers in an object by plain ones."""
    kind = kind_of(type(holder))
    if kind is None or not kind.mutable:
        return
    parts = kind.parts(holder)
    if any(number.node_of(part) is not None for _, part in parts):
        kind.refill(holder, [(step, number.bare(part)) for step, part in parts])


def _held(
    found: list[Number | Integer], besides: Collection[object]
) -> tuple[list[Any], list[Any]]:
    """The numbers reachable from objects older than the step, or from running frames.

    All that Python holds is gone through once: in a process of a million objects that takes a
    tenth of a second. The recording runs without collections: what it makes is young, and holds on
    to itself at most, as an inner function does that knows itself.

    Args:
        besides: objects that do not count as holders.

    Returns:
        The numbers, and the direct holders of any of ``found``.
    """
    apart = set(map(id, besides))
    young = [one for one in gc.get_objects(0) if id(one) not in apart]
    made = _holders_among(young, found)
    numbers, known = set(map(id, found)), {*map(id, found), *apart, *map(id, made)}
    holders = gc.get_referrers(*found, *made)
    younger = set(map(id, gc.get_objects(0)))
    held = set(map(id, _of_running_lines()))
    for holder in holders:
        if id(holder) not in known and id(holder) not in younger:
            held.update(map(id, gc.get_referents(holder)))
    below = {id(one): list(map(id, gc.get_referents(one))) for one in made}
    reached = [one for one in below if one in held]
    while reached:
        more = [one for one in below.pop(reached.pop(), ()) if one not in held]
        held.update(more)
        reached += more
    own = (found, young, made)
    direct = [
        one
        for one in holders
        if not (isinstance(one, FrameType) or any(one is mine for mine in own))
        and any(id(part) in numbers for part in gc.get_referents(one))
    ]
    for objects in (young, made, holders):  # the frame that has them as variables may be in them
        objects.clear()
    return [one for one in found if id(one) in held], direct


def _holders_among(young: list[Any], found: list[Any]) -> list[Any]:
    """Those of ``young`` that refer to ``found``, directly or through others of them."""
    holders: dict[int, list[Any]] = {}
    for one in young:
        for part in gc.get_referents(one):
            holders.setdefault(id(part), []).append(one)
    above, reached = set(map(id, found)), list(found)
    made: list[Any] = []
    while reached:
        more = [one for one in holders.get(id(reached.pop()), ()) if id(one) not in above]
        above.update(map(id, more))
        made += more
        reached += more
    return made


def _of_running_lines() -> Iterator[object]:
    """The local variables of the user's running functions."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if not is_library_file(frame.f_code.co_filename):
            yield from frame.f_locals.values()


def _replace(holders: list[Any], plain: _Plain) -> None:
    """Replace the keys of ``plain`` by its values in all holders."""
    for _ in range(_DEEPEST):
        tuples = [one for one in holders if _is_open(one, plain)]
        if not tuples:
            return
        plain = {id(one): _with(one, plain) for one in tuples}
        holders = [
            one
            for one in gc.get_referrers(*tuples)
            if one is not tuples and not isinstance(one, FrameType)
        ]


def _is_open(holder: Any, plain: _Plain) -> bool:
    """Replace items of ``holder``; true for a tuple, which has to be replaced itself."""
    if is_a(holder, dict):
        _replace_in(holder, plain)
    elif is_a(holder, (list, deque)):
        for index, item in entries_in(holder):
            if id(item) in plain:
                base_of(holder).__setitem__(holder, index, plain[id(item)])
    elif is_a(holder, CellType):
        holder.cell_contents = plain[id(holder.cell_contents)]
    elif isinstance(holder, tuple):
        return True
    else:
        _replace_attributes(holder, plain)
    return False


def _with(items: tuple[Any, ...], plain: _Plain) -> tuple[Any, ...]:
    made = tuple([plain.get(id(item), item) for item in elements(items)])
    kind = type(items)
    if kind is tuple:
        return made
    # A class in C, as torch.Size is, makes its own; one in Python may take other arguments.
    in_c = not kind.__flags__ & _HEAP_TYPE
    return kind(made) if in_c else tuple.__new__(kind, made)


def _replace_in(holder: dict[Any, Any], plain: _Plain) -> None:
    base = base_of(holder)
    if any(id(key) in plain for key in elements(holder)):
        items = [(plain.get(id(key), key), value) for key, value in entries_in(holder)]
        base.clear(holder)
        base.update(holder, items)
    for key, value in entries_in(holder):
        if id(value) in plain:
            base.__setitem__(holder, key, plain[id(value)])


def _replace_attributes(holder: object, plain: _Plain) -> None:
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict):
        _replace_in(own, plain)
    for cls in type(holder).__mro__:
        for slot in vars(cls).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # an empty one, or one that cannot be set
                    value = slot.__get__(holder)
                    if id(value) in plain:
                        slot.__set__(holder, plain[id(value)])
