"""The lock of a Graph's calls; a forked child gets a new one and waits for no thread."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

from .._torch.patching import patching
from ..replay.interrupts import SignalsWait

_FORKED = "the process was forked while another thread ran it"


class CallLock:
    """The lock under which one thread at a time calls a Graph.

    A forked process has the thread alone that forked it. Where another one was in a call, the child
    finds a lock that nobody gives back, and half a step.

    Args:
        signals: what knows of half a step.
    """

    def __init__(self, signals: SignalsWait) -> None:
        self.lock, self._signals = threading.RLock(), signals
        """To be entered itself: between two lines of Python an exception could leave it held."""
        _all.add(self)

    def renew(self) -> None:
        """Forget other threads: this process is a child that has none."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock = threading.RLock()
            self._signals.torn = _FORKED


_all: WeakSet[CallLock] = WeakSet()


def _renew() -> None:
    patching.renew()
    for lock in list(_all):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
