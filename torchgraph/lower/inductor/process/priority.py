"""The priority of a compiling process: idle beside a training, and not while somebody waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def is_lowered(process: int) -> bool:
    """True when a process has a lower priority than this one; False when it has ended."""
    with suppress(ProcessLookupError):
        schedules = hasattr(os, "sched_getscheduler")
        if schedules and os.sched_getscheduler(process) != os.sched_getscheduler(0):
            return True
        own = os.getpriority(os.PRIO_PROCESS, 0)
        return os.getpriority(os.PRIO_PROCESS, process) > own
    return False


def raised(process: int) -> bool:
    """Give a process and those below it the priority of this one; False where that is forbidden.

    It needs the rights of root, or a limit (``ulimit -e``) of at least 20.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        for thread in _threads_below(process):
            with suppress(ProcessLookupError):
                if hasattr(os, "sched_setscheduler"):
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, thread, own)
    except PermissionError:
        return False
    return True


def computed(process: int) -> float:
    """Seconds that a process and those below it have computed; 0.0 where nobody tells."""
    return sum(_computed(thread) for thread in _threads_below(process))


def _threads_below(process: int) -> Iterator[int]:
    yield process
    with suppress(OSError):  # it ends, or this is no Linux
        for task in Path(f"/proc/{process}/task").iterdir():
            if int(task.name) != process:
                yield int(task.name)
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from _threads_below(int(child))


def _computed(thread: int) -> float:
    with suppress(OSError):
        # Nanoseconds on a processor, nanoseconds of waiting for one, and how often.
        return int(Path(f"/proc/{thread}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return 0.0
