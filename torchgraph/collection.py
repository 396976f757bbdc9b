"""Python's garbage collection: none for the length of a block, and little need of it."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakMethod

from .counters import counters

_Error = TypeVar("_Error", bound=BaseException)
_Found = TypeVar("_Found")


class _Pauses:
    """The blocks in which nothing is collected, of all threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer or a handler of signals may come back
        self._open: Counter[int] = Counter()
        """By thread."""
        self._enabled = False
        """True where collection was enabled when the first open block began."""
        self._has_captured = False
        """True once a capture has ended in this process."""
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Reset after a fork: the child has one thread."""
        here, was_open = threading.get_ident(), bool(self._open)
        own = self._open[here]
        self._lock, self._open = threading.RLock(), Counter({here: own} if own else {})
        if was_open and not own and self._enabled:
            gc.enable()

    def begin(self) -> None:
        """Begin a block in this thread."""
        with self._lock:
            if not self._open:
                self._enabled = gc.isenabled()
            self._open[threading.get_ident()] += 1
            gc.disable()

    def end(self, *, collects: bool) -> None:
        """End a block of this thread; the last one collects young objects if it ``collects``."""
        here = threading.get_ident()
        with self._lock:
            self._open[here] -= 1
            if not self._open[here]:
                del self._open[here]
            last = not self._open and self._enabled
        if last and collects:
            self._collect_young()
        with self._lock:
            if last and not self._open:
                gc.enable()

    def _collect_young(self) -> None:
        """Collect young objects; those of the process's first capture that stay are old at once.

        What a collection moves to the oldest generation counts towards the next full collection,
        which looks at all objects of the process (0.2 s where torch and transformers are imported).
        The first program alone would tip it. `gc.freeze` and `gc.unfreeze` move objects without
        counting them; they would unfreeze those of a user who froze some. Objects of later captures
        count: else who captures on and on would never have a full collection. Python 3.14 collects
        by increments.
        """
        if self._has_captured or sys.version_info >= (3, 14) or gc.get_freeze_count():
            gc.collect(1)
            return
        self._has_captured = True
        gc.collect(0)
        gc.freeze()
        gc.unfreeze()


_pauses = _Pauses()


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing in the block; as it was once no thread is in one any more.

    For what makes many objects and no garbage: collections are a quarter of the time then. A
    program lives long: what it is made of is looked at once, and not in each collection to come.
    """
    made = counters.captures
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end(collects=counters.captures > made)


def cached_by_class(function: Callable[[type], _Found]) -> Callable[[type], _Found]:
    """`functools.cache` by class with weak keys: users' functions may make a class at each call."""
    known: WeakKeyDictionary[type, _Found] = WeakKeyDictionary()

    @functools.wraps(function)
    def find(cls: type) -> _Found:
        if cls not in known:
            known[cls] = function(cls)
        return known[cls]

    return find


def weakly(
    method: Callable[..., Any], gone: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A bound method that does not hold its object.

    For what an object hands to its own parts: a part that held the object would keep both alive
    until the next collection, and with a Graph the memory of its model.

    Args:
        gone: what is called when the object is no more; else that is a `ReferenceError`.
    """
    known = WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = known() or gone
        if found is None:
            raise ReferenceError("the object of a method is gone")
        return found(*args, **kwargs)

    return call


def afresh(error: _Error) -> _Error:
    """A copy of an error without its frames: to be raised from a variable, or to be kept.

    An error holds the frames that it went through. One that lies in a variable of such a frame, or
    of its ``self``, holds itself, and with it all of the step, until the next collection.
    """
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    vars(made).update(vars(error))
    made.__cause__ = error.__cause__
    return made
