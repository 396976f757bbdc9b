"""Numbers that ranks of one host show each other: a piece of memory, without a message.

Each rank writes its own words alone, one after the other in two places: nobody comes to a meeting
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
"""Looks that only let others run, for some milliseconds; then it sleeps in between."""
_SLEEP = 20e-6


class Board:
    """What ``count`` ranks share.

    Args:
        file: an open file of the size that `size` says.
        place: which of the ranks this one is, from 0 on.
    """

    def __init__(self, file: int, count: int, place: int) -> None:
        self._words = memoryview(mmap.mmap(file, self.size(count))).cast("Q")
        self._count, self._place = count, place

    @staticmethod
    def size(count: int) -> int:
        """Bytes."""
        return 16 * count

    def show(self, meeting: int, number: int) -> None:
        """This rank has come, with a number below 2^32."""
        self._words[self._index(meeting) + self._place] = (meeting & 0xFFFFFFFF) << _BITS | number

    def same(self, meeting: int, seconds: float) -> bool | None:
        """Whether all have come with the same number; None where they have not all come in time."""
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


def made(count: int) -> tuple[int, str]:
    """A new file for a board, and its path: in memory where there is such a place."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    file, path = tempfile.mkstemp(prefix="torchgraph-board-", dir=folder)
    os.write(file, bytes(Board.size(count)))
    return file, path


def opened(path: str, count: int) -> int | None:
    """The file of a board that another rank has made; None where it is not to be seen from here."""
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        found = os.fstat(file)
        own = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o600
        if own and found.st_size == Board.size(count):
            return file
        os.close(file)
    return None
