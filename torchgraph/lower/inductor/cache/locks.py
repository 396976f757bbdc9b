"""Locks of directories. The system takes one back however its process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """A lock of a directory, until it is released or the process ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def of(cls, folder: Path, *, shared: bool = False) -> Lock | None:
        """A lock of ``folder``; None where there are no locks, or where it is no directory.

        Raises:
            BlockingIOError: somebody else has one; nobody waits here, since a process that has one
                may stand still.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(folder, flags)
        except OSError:
            return None
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise
            return None
        return cls(handle)

    def is_of(self, folder: Path) -> bool:
        """True while ``folder`` is the directory that was locked."""
        try:
            return os.path.samestat(os.fstat(self._handle), folder.lstat())
        except OSError:
            return False

    def release(self) -> None:
        """Give it back. Once."""
        os.close(self._handle)
