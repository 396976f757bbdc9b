"""Scratch: a folder of one compilation, gone with it, or swept when its process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_PREFIX = "torchgraph-compiles-"
_NAME = re.compile(_PREFIX + r"(\d+)-\w{8}", re.ASCII)
"""The process that made it, and eight letters. Nothing else is swept."""
_YOUNG = 60.0
"""Seconds for which an unlocked folder is left alone: its maker may be about to lock it."""
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
"""What Inductor can put into the command line of a compiler: it quotes no path."""
_ODD = re.compile(r"[^\w.-]", re.ASCII)


class Scratch:
    """A new folder with mode 0700, locked for as long as this process lives.

    Args:
        wanted: directories to make it in. The first whose path is plain is taken, else one for
            temporary files.
    """

    def __init__(self, wanted: Sequence[Path]) -> None:
        parent = _plain_directory(wanted)
        for left in parent.glob(f"{_PREFIX}*"):
            _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = locked(self.path)

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def plain(self, path: Path) -> Path:
        """``path``, or where it is not plain a link to it in the folder."""
        if is_plain(path):
            return path
        link = self.path / _ODD.sub("_", path.name)
        link.symlink_to(path)
        return link


@contextlib.contextmanager
def plainly(path: Path) -> Iterator[Path]:
    """``path``, or for as long as it takes a link to it whose path is plain."""
    if is_plain(path):
        yield path
        return
    scratch = Scratch([])
    try:
        yield scratch.plain(path)
    finally:
        scratch.remove()


def is_plain(path: Path) -> bool:
    """True where a compiler's command line can hold the path: no space, no quote, no ``$``."""
    return _PLAIN.fullmatch(str(path)) is not None


def locked(folder: Path) -> int | None:
    """An open lock of the directory; None where another has it, or where there are no locks."""
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found


def _plain_directory(wanted: Sequence[Path]) -> Path:
    temporary = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    usable = [path for path in [*wanted, *temporary] if os.access(path, os.W_OK | os.X_OK)]
    return next(filter(is_plain, usable), temporary[0])


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of ours whose maker is gone: the system gave its lock back."""
    maker = _NAME.fullmatch(folder.name)
    with contextlib.suppress(OSError):  # another process was faster
        found = folder.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if maker is None or not is_ours or stat.S_IMODE(found.st_mode) != 0o700:
            return
        if time.time() - found.st_mtime < _YOUNG and _is_alive(int(maker[1])):
            return
        lock = locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True
