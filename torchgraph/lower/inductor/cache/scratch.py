"""Scratch: a private folder of this process, gone with it, or swept when it was killed.

Its name says who made it, and a lock that somebody works in it: the system takes a lock back
however its process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ....errors import InvalidOption
from .private import NotPrivate, steps_are_safe

_PREFIX = "torchgraph-scratch-"
_NAME = re.compile(_PREFIX + r"(\d+)-\w{8}", re.ASCII)
"""The process that made it, and eight letters. Nothing else is swept."""
_YOUNG = 60.0
"""Seconds for which the unlocked folder of a process that lives is left alone: it may be about to
lock it."""
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
"""What Inductor can put into the command line of a compiler: it quotes no path."""
_ODD = re.compile(r"[^\w.-]", re.ASCII)


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


class Scratch:
    """A new folder with mode 0700, locked until it is removed or this process ends.

    Args:
        parent: a private directory to make it in; None for one of temporary files.

    Raises:
        InvalidOption: every directory for temporary files is open to others.
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or _for_temporary_files()
        sweep(parent)
        self._maker = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{self._maker}-", dir=parent))
        self._lock = Lock.of(self.path)

    @classmethod
    def for_compilers(cls, wanted: Path) -> Scratch:
        """One whose path compilers take: in ``wanted``, a private directory, if that is plain."""
        return cls(wanted if is_plain(wanted) else None)

    def remove(self) -> None:
        """Remove the folder and what is in it. In a fork of the process that made it: nothing."""
        if os.getpid() != self._maker:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def plain(self, path: Path) -> Path:
        """``path``, or where it is not plain a link to it in the folder."""
        if is_plain(path):
            return path
        link = self.path / _ODD.sub("_", path.name)
        link.symlink_to(path)
        return link

    def copy_of(self, folder: Path) -> Path:
        """A copy of a folder: Inductor writes where it loads from."""
        return Path(shutil.copytree(folder, self.path / folder.name, symlinks=True))


def is_plain(path: Path) -> bool:
    """True where a compiler's command line can hold the path: no space, no quote, no ``$``."""
    return _PLAIN.fullmatch(str(path)) is not None


def sweep(parent: Path) -> None:
    """Remove the folders that killed processes left in a directory."""
    for folder in parent.glob(f"{_PREFIX}*"):
        maker = _NAME.fullmatch(folder.name)
        if maker is not None:
            with suppress(OSError):  # in use, or another process was faster
                _remove_if_left(folder, int(maker[1]))


def _remove_if_left(folder: Path, maker: int) -> None:
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or stat.S_IMODE(found.st_mode) != 0o700:
        return
    if time.time() - found.st_mtime >= _YOUNG or not _is_alive(maker):
        lock = Lock.of(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _for_temporary_files() -> Path:
    why = ""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        try:
            real = steps_are_safe(Path(parent))
        except (NotPrivate, OSError) as error:
            why = why or str(error)
            continue
        if is_plain(real) and os.access(real, os.W_OK | os.X_OK):
            return real
    raise InvalidOption(
        f"No directory for temporary files can be used: {why or 'their names are odd'}.",
        fix="name a directory of your own in TMPDIR.",
    )
