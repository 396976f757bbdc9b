"""The queue of this process's compilations: few run at once, and what a step waits for is first."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Waiting(Protocol):
    """What waits in the queue, or runs."""

    @property
    def keys(self) -> frozenset[str]:
        """What it compiles. Two that share one of them do not run at once."""

    @property
    def has_ended(self) -> bool:
        """True when it runs no more."""

    def begin(self, *, idle: bool) -> None:
        """Start its process. Raises nothing."""

    @property
    def yields(self) -> bool:
        """True when its process may be ended for another that somebody waits for."""

    def put_back(self) -> None:
        """End its process; it is in the queue again."""

    def hurry(self) -> None:
        """Somebody waits for it, or for what comes after it."""


class Queue:
    """Compilations in the order in which they run. Who drops one takes it out.

    Args:
        cores: half of them compile: one process for each four cores, eight at most.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        half = max(1, cores // 2)
        self.slots = min(8, max(1, half // 2))
        self.threads = half // self.slots
        """For each process."""
        self.forget()

    def forget(self) -> None:
        """Nothing waits and nothing runs: what did belongs to a process of which this is a fork."""
        self._lock = threading.RLock()
        self._waiting: list[weakref.ref[Waiting]] = []
        self._running: list[weakref.ref[Waiting]] = []

    def put(self, compilation: Waiting, *, first: bool) -> None:
        """Run it when it is its turn: now, if there is a slot. ``first``: a step waits for it."""
        with self._lock:
            self._waiting.append(weakref.ref(compilation))
            self.advance(compilation if first else None)

    def processes(self, *, idle: bool) -> int:
        """How many one compilation may run. While a step waits for it, all cores compute for it."""
        with self._lock:
            running = sum(not one.has_ended for one in _there(self._running))
        free = self.slots - running if idle else self._cores // self.threads
        return max(1, free)

    def remove(self, compilation: Waiting) -> None:
        """It need not run any more."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one() is not compilation]

    def advance(self, first: Waiting | None = None) -> None:
        """Start what has a slot now. ``first``: a step waits for it; what runs hurries."""
        with self._lock:
            running = [one for one in _there(self._running) if not one.has_ended]
            if first is not None:
                running = self._make_room(running, first)
            waiting = sorted(_there(self._waiting), key=lambda one: one is not first)
            for one in waiting:
                busy = frozenset().union(*(other.keys for other in running))
                if len(running) < self.slots and not busy & one.keys:
                    self.remove(one)
                    one.begin(idle=first is None)
                    running.append(one)
            self._running = [weakref.ref(one) for one in running]
            if first is not None:
                for one in running:
                    one.hurry()

    def _make_room(self, running: list[Waiting], first: Waiting) -> list[Waiting]:
        """Put back what yields, where no slot is free for ``first``; gives what still runs."""
        if first not in _there(self._waiting) or len(running) < self.slots:
            return running
        ended = [one for one in running if one.yields and not one.keys & first.keys]
        for one in ended:
            one.put_back()
            self._waiting.append(weakref.ref(one))
        return [one for one in running if one not in ended]

    def before(self, compilation: Waiting) -> int:
        """How many run that this one waits for; 0 when it waits for none."""
        with self._lock:
            waiting = _there(self._waiting)
            if compilation not in waiting:
                return 0
            return len(_there(self._running))


def _there(found: list[weakref.ref[Waiting]]) -> list[Waiting]:
    return [one for one in (ref() for ref in found) if one is not None]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


queue = Queue(_cores())
os.register_at_fork(after_in_child=queue.forget)
