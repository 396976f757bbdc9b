"""Signals while a step runs, Ctrl-C's first of all: their handlers wait until the step is whole."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ..lines import runs_users_code

CUT_SHORT = "it was cut short"
"""The text for a step that an exception from outside left half done."""
_NAMES = (
    *("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"),
    *("SIGXCPU", "SIGVTALRM", "SIGCHLD"),
)
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
"""The signals whose handlers raise in practice: Ctrl-C, a scheduler's notice, a timeout, a limit,
and that a DataLoader has lost a worker."""
_handler = _signal.getsignal  # the public ones spend 3 us on an enum
_set_handler = _signal.signal
_can_poke = hasattr(signal, "pthread_kill")
_main = threading.main_thread().ident
_REMINDS, _SAYS, _INSISTS = 0.02, 1.0, 10.0
"""Seconds: between two looks for the user's own code, until it is said what is waited for, and
until a handler runs in the user's own code as if its signal had come a second time."""


class SignalsWait:
    """Delays handlers of signals in the block to its end, when the step is whole.

    A handler may raise, and most of a step is torch's code and torchgraph's, which no exception may
    leave anywhere. In the user's own code one may: there a handler runs at once while `open`. In
    other threads than the main one, where Python runs no handlers, this does nothing. It may be
    entered again.

    Args:
        gives_in: to a signal that comes a second time, or waits for long, in any code of the
            user's. What is half done then is `torn`.
    """

    def __init__(self, *, gives_in: bool = False) -> None:
        self._gives_in = gives_in
        self.open = False
        """True while the user's own code runs, in a step that is taken back when that raises."""
        self.torn = ""
        """The state that the running step, or the last, is left in if it ends now; empty: whole."""
        self._depth = 0
        self._thread = 0
        self._held: dict[int, Callable[[int, FrameType | None], object]] = {}
        """The user's handlers."""
        self._pending: list[int] = []
        """The signals whose handlers wait."""
        self._since = 0.0
        self._poked = False
        """True when the signal to come is one that came before."""
        self._lock = threading.Lock()
        """Held where a signal is resent: never after the block."""

    @property
    def interrupted(self) -> bool:
        """True while Ctrl-C waits for the end of the block. A child that ends is no interrupt."""
        return int(signal.SIGINT) in self._pending

    def __enter__(self) -> None:
        here = threading.get_ident()
        if here != _main:
            return
        if not self._depth:
            try:
                self._hold()
            except BaseException:  # of a handler that is still the user's
                self._put_back()
                raise
            self._thread = here
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if not self._depth or threading.get_ident() != self._thread:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        try:
            self._put_back()
        finally:
            self._depth = 0
            if self._pending:
                self._run(sys._getframe(1))

    def renew(self) -> bool:
        """In a forked process leave the block of a thread that is not in it; False: it is here."""
        if self._depth and self._thread == threading.get_ident():
            return False
        self._pending, self._lock, self.open = [], threading.Lock(), False
        try:
            self._put_back()
        finally:
            self._depth = 0
        return True

    def _hold(self) -> None:
        for number, handler in zip(_SIGNALS, map(_handler, _SIGNALS), strict=True):
            if not callable(handler) or self._is_ours(handler):
                continue
            self._held[number] = handler
            try:
                _set_handler(number, self._catch)
            except ValueError:  # embedded: the main thread of Python is another one
                del self._held[number]

    def _is_ours(self, handler: object) -> bool:
        """True for `_catch`: no such method is kept, it would hold this, and this would hold it."""
        return getattr(handler, "__self__", None) is self

    def _put_back(self) -> None:
        if self._pending:
            with self._lock:
                self._since = 0.0  # no signal is sent again from here on
        for number, handler in tuple(self._held.items()):
            if self._is_ours(_handler(number)):  # else the step has put another one there
                _set_handler(number, handler)
            del self._held[number]

    def _run(self, frame: FrameType) -> None:
        """Run the handlers that have waited, also after one that raises."""
        number = self._pending.pop(0)
        try:
            handler = _handler(number)
            if callable(handler):
                handler(number, frame)
            elif handler == signal.SIG_DFL:
                signal.raise_signal(number)
        finally:
            if self._pending:
                self._run(frame)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if not self._depth:
            self._held[number](number, frame)
            return
        poked, self._poked = self._poked, False
        late = bool(self._pending) and time.monotonic() - self._since > _INSISTS
        again = self._gives_in and number in self._pending and (not poked or late)
        if (self.open or again) and runs_users_code(frame):
            if number in self._pending:
                self._pending.remove(number)
            self._held[number](number, frame)
            return
        if not self._pending:
            self._since = time.monotonic()
            self._remind_later()
        if number not in self._pending:
            self._pending.append(number)

    def _remind_later(self) -> None:
        # No `threading.Thread`: what a handler interrupts may hold the locks that it takes.
        pokes = _can_poke and not _wakes_somebody()
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(self._remind, (threading.get_ident(), self._since, pokes))

    def _remind(self, main: int, since: float, pokes: bool) -> None:
        """Say what is waited for, and send the signals again: by then the user's code may run."""
        said = False
        while True:
            time.sleep(_REMINDS)
            waits = time.monotonic() - since
            with self._lock:
                if not (self._depth and self._pending) or self._since != since:
                    return
                first = self._pending[0]
                if pokes and (self.open or (self._gives_in and waits > _INSISTS)):
                    self._poked = True
                    signal.pthread_kill(main, first)
            if waits > _SAYS and not said:
                said = True
                self._say(first)

    def _say(self, number: int) -> None:
        what = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        again = "; a second one, for the next line of your own code" if self._gives_in else ""
        sys.stderr.write(f"torchgraph: {what} waits for the end of this step{again}.\n")
        sys.stderr.flush()


def _wakes_somebody() -> bool:
    """True where each signal is also written to a file: to asyncio, which would count it twice."""
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before, warn_on_full_buffer=False)
    return before != -1


def _renew() -> None:
    global _main
    _main = threading.main_thread().ident
    for number in _SIGNALS:
        while isinstance(waits := getattr(_handler(number), "__self__", None), SignalsWait):
            if not waits.renew():
                break


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
