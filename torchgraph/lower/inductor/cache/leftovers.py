"""Folders that killed processes left: the system gave their locks back."""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from .locks import Lock

_YOUNG = 60.0
"""Seconds for which an unlocked folder is left alone: its maker may be about to lock it."""


def remove_if_left(folder: Path, maker: int | None = None) -> None:
    """Remove a folder as `tempfile.mkdtemp` makes it, unless somebody works in it.

    Args:
        maker: the process that made it, where that is known: once it is gone nobody waits.
    """
    with suppress(OSError):  # in use, or another process was faster
        found = folder.lstat()
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        is_old = time.time() - found.st_mtime >= _YOUNG
        if not is_ours or stat.S_IMODE(found.st_mode) != 0o700:
            return
        if is_old or (maker is not None and not _is_alive(maker)):
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
