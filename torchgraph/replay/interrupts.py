"""Ctrl-C while a step runs: it waits until the step is whole."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from typing import Any

_INTERRUPT = int(signal.SIGINT)
_set_handler = _signal.signal  # the public one spends 3 us on an enum, twice in a step


class InterruptsWait:
    """Ctrl-C inside a step takes effect when the step is over."""

    caught: bool
    """True once there was one."""

    def __enter__(self) -> None:
        self.caught = False
        self._main = threading.get_ident() == threading.main_thread().ident
        if self._main:
            self._before = _set_handler(_INTERRUPT, self._catch)

    def _catch(self, number: int, frame: Any) -> None:
        self.caught = True

    def __exit__(self, *_: object) -> None:
        if self._main:
            _set_handler(_INTERRUPT, signal.SIG_DFL if self._before is None else self._before)
            if self.caught:
                signal.raise_signal(_INTERRUPT)
