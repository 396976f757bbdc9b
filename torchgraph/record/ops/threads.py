"""CPU times of other threads, one of which may have advanced a generator meanwhile."""

from __future__ import annotations

import sys
import threading
import time


class OtherThreads:
    """The CPU times of Python's other threads at one moment."""

    def __init__(self) -> None:
        self._times = _times()

    def ran(self) -> bool:
        """True when one of them has run since, or may have: only Linux tells."""
        now = _times()
        return now != self._times or None in now.values()


def _times() -> dict[int | None, int | None]:
    here = threading.current_thread()
    others = (thread.native_id for thread in threading.enumerate() if thread is not here)
    return {native_id: _nanoseconds(native_id) for native_id in others}


def _nanoseconds(native_id: int | None) -> int | None:
    """The CPU time of one thread; None where the system does not say."""
    if native_id is None or sys.platform != "linux":
        return None
    clock = ~native_id << 3 | 6  # what Linux's pthread_getcpuclockid() makes of a thread's number
    try:
        return time.clock_gettime_ns(clock)
    except OSError:  # it has ended
        return None
