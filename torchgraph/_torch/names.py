"""Names in namespaces and attributes that stand for something else for a while.

Dynamo reads the functions that it finds under torch's names, and knows torch's own alone: while it
does, everything that a recording has put there is taken away (`lifted`), and put back for the ops
that it has found (`in_force`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ABSENT: Any = object()
_Change = tuple[Callable[[], object], Callable[[], object]]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.active: list[_Change] = []
        """The patches in place, in order: what sets each, and what takes it back."""
        self.aside: list[list[_Change]] = []
        """The patches taken back by each `lifted` block around."""


_here = _OfThread()


def _forget(change: _Change) -> None:
    """Take a patch off the list: the last one, where blocks end in their order."""
    active = _here.active
    if active and active[-1] is change:
        active.pop()
    else:
        active[:] = [one for one in active if one is not change]


@contextmanager
def liftable(put: Callable[[], object], take: Callable[[], object]) -> Iterator[None]:
    """Let `lifted` blocks in the block call ``take`` as they begin, and ``put`` as they end."""
    change = (put, take)
    _here.active.append(change)
    try:
        yield
    finally:
        _forget(change)


@contextmanager
def lifted() -> Iterator[None]:
    """Have this thread's own replacements taken away in the block."""
    held, _here.active = _here.active, []
    _here.aside.append(held)
    for _, take in reversed(held):
        take()
    try:
        yield
    finally:
        for put, _ in held:
            put()
        _here.active = _here.aside.pop()


@contextmanager
def in_force() -> Iterator[None]:
    """Have the replacements back that the `lifted` block around has taken away."""
    within, _here.active = _here.active, _here.aside.pop()
    held = _here.active
    for put, _ in held:
        put()
    try:
        yield
    finally:
        for _, take in reversed(held):
            take()
        _here.active = within
        _here.aside.append(held)


class patched:
    """Have ``holder.name`` be ``value`` in the block; for classes written in C, too.

    Not ``lifts``: also in `lifted` blocks.
    """

    __slots__ = ("_before", "_change", "_holder", "_lifts", "_name", "_value")

    def __init__(self, holder: Any, name: str, value: object, *, lifts: bool = True) -> None:
        self._holder, self._name, self._value, self._lifts = holder, name, value, lifts

    def __enter__(self) -> None:
        self._before = vars(self._holder).get(self._name, _ABSENT)
        self._change: _Change = (self._put, self._take)
        self._put()
        if self._lifts:
            _here.active.append(self._change)

    def __exit__(self, *_: object) -> None:
        if self._lifts:
            _forget(self._change)
        self._take()
        del self._change  # its methods hold this object

    def _put(self) -> None:
        setattr(self._holder, self._name, self._value)

    def _take(self) -> None:
        if self._before is _ABSENT:
            delattr(self._holder, self._name)
        else:
            setattr(self._holder, self._name, self._before)


@contextmanager
def standing_for(namespace: dict[str, Any], replacements: Mapping[str, Any]) -> Iterator[None]:
    """In the block ``namespace`` has the replacements; no other name is touched.

    What the block itself assigns to one of them stays.
    `mock.patch.dict` empties the namespace and fills it anew as it ends, in which other threads
    find no ``torch``, and an exception leaves none.
    """
    before = {name: namespace.get(name, _ABSENT) for name in replacements}

    def put() -> None:
        for name, value in before.items():
            if namespace.get(name, _ABSENT) is value:
                namespace[name] = replacements[name]

    def take() -> None:
        for name, value in before.items():
            if namespace.get(name, _ABSENT) is not replacements[name]:
                continue
            if value is _ABSENT:
                namespace.pop(name, None)
            else:
                namespace[name] = value

    try:
        put()
        with liftable(put, take):
            yield
    finally:
        take()
