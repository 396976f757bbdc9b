"""A barrier over shared memory for the ranks of one host, in which each rank shows a number.

Each rank writes its own slots alone, alternating between two of them: no rank enters a barrier
before all have read the one before.
"""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
import time
from contextlib import suppress

_BITS = 32
_YIELDS = 2000
"""Reads with `sched_yield` in between, which take some milliseconds; later ones sleep."""
_SLEEP = 20e-6


class SharedSlots:
    """Shared memory of ``count`` ranks, with two slots for each.

    Args:
        file: an open file of the size that `size` says.
        place: the index of this rank among them.
    """

    def __init__(self, file: int, count: int, place: int) -> None:
        self._words = memoryview(mmap.mmap(file, self.size(count))).cast("Q")
        self._count, self._place = count, place

    @staticmethod
    def size(count: int) -> int:
        """The size of the file in bytes."""
        return 16 * count

    def show(self, meeting: int, number: int) -> None:
        """Enter the barrier with a number below 2^32."""
        self._words[self._index(meeting) + self._place] = (meeting & 0xFFFFFFFF) << _BITS | number

    def same(self, meeting: int, seconds: float) -> bool | None:
        """True when all ranks have entered with one number; None when some have not in time."""
        first = self._index(meeting)
        mine = self._words[first + self._place]
        looks, limit = 0, 0.0
        while True:
            words = self._words[first : first + self._count].tolist()
            if all(word >> _BITS == mine >> _BITS for word in words):
                return all(word == mine for word in words)
            looks += 1
            if looks < _YIELDS:
                os.sched_yield()
                continue
            now = time.monotonic()
            limit = limit or now + seconds
            if now > limit:
                return None
            time.sleep(_SLEEP)

    def _index(self, meeting: int) -> int:
        return meeting % 2 * self._count


def created(count: int) -> tuple[int, str]:
    """A new file for `SharedSlots`, and its path: in /dev/shm where that exists."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    file, path = tempfile.mkstemp(prefix="torchgraph-board-", dir=folder)
    os.write(file, bytes(SharedSlots.size(count)))
    return file, path


def opened(path: str, count: int) -> int | None:
    """The file that another rank has created for `SharedSlots`; None where it is not visible."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        found = os.fstat(file)
        own = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o600
        if own and found.st_size == SharedSlots.size(count):
            return file
        os.close(file)
    return None
