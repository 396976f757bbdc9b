"""The lock of the thread whose recording patches classes and names of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import NotSupported

_PATIENCE, _LIMIT = 2.0, 600.0
"""Seconds that a thread waits for the recording of another: where it can do without, and at most.

The other may wait for this one: for what it puts in a queue, say."""


class Patching:
    """A lock for patched classes, held by a thread that records a step; other threads wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread: int | None = None
        self.ended = (0, 0)
        """The number of times that classes were patched, and the thread that did so last."""
        self._outwaited: tuple[int | None, tuple[int, int]] | None = None
        """A recording for which somebody has waited in vain."""
        self._waits = threading.local()
        """The patience of each thread: what once waited for it may do so again."""

    def forget_waits(self) -> None:
        """Let each thread have its patience again."""
        self._outwaited, self._waits = None, threading.local()

    def renew(self) -> None:
        """Forget other threads: this process is a child that has none."""
        self.forget_waits()
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._thread = threading.RLock(), None

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other threads from patching classes or reading patched ones.

        Yields False where another thread patches them for long: nobody waits for it then.
        """
        free = self._lock.acquire(blocking=False) or self._waited()
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def _waited(self) -> bool:
        now = (self._thread, self.ended)
        patience: float = getattr(self._waits, "patience", _PATIENCE)
        free = self._lock.acquire(timeout=0.0 if now == self._outwaited else patience)
        self._outwaited = None if free else (self._thread, self.ended)
        self._waits.patience = _PATIENCE if free else patience / 2
        return free

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Mark this thread as the one that patches classes.

        Raises:
            NotSupported: another thread does, and goes on with it.
        """
        if not self._lock.acquire(timeout=_LIMIT):
            raise NotSupported(
                f"Another thread has recorded a step for {_LIMIT:.0f} s, and this thread waits for "
                "it: two steps are not recorded at once.",
                fix="let no step wait for the first calls of another Graph.",
            )
        outer, self._thread = self._thread, threading.get_ident()
        try:
            yield
        finally:
            self._thread = outer
            self.ended = (self.ended[0] + 1, threading.get_ident())
            self._lock.release()

    def is_elsewhere(self) -> bool:
        """True while another thread patches classes."""
        return self._thread not in (None, threading.get_ident())

    def was_seen(self, since: tuple[int, int]) -> bool:
        """True when another thread may have patched a class since ``ended`` was ``since``."""
        ended = self.ended != since and self.ended[1] != threading.get_ident()
        return ended or self.is_elsewhere()


patching = Patching()
"""One at a time in a process."""
