"""Files that are replaced as a whole: written beside their path, synced, renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from ..errors import CheckpointFileError, CheckpointNotFound

PREFIX = ".torchgraph-save-"
"""The prefix of the names of files that are being written."""
_MADE = re.compile(r"\d+-[0-9a-f]{8}", re.ASCII)
"""The suffix of these names: the writing process, and four random bytes."""


@contextmanager
def replaced(path: str) -> Iterator[BinaryIO]:
    """A new file to write; at the end of the block it is at ``path``, if the block did not raise.

    It has the mode of the file before, or the one that ``open()`` would give. What killed saves to
    the same path left behind is removed.

    Raises:
        CheckpointFileError: the path cannot be written.
    """
    try:
        if os.path.basename(path) in ("", os.curdir, os.pardir):
            raise IsADirectoryError(errno.EISDIR, "it names a folder")
        target = os.path.realpath(path)
        before = _looked_at(target)
        if before is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "it may only be read")
        folder, name = os.path.split(target)
        key = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
        _clear(folder, f"{PREFIX}{key}-")
        temporary, file = _made(os.path.join(folder, f"{PREFIX}{key}-"), before)
    except OSError as error:
        raise refused("written", path, error) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # While the file is locked: nobody takes it for a left one.
            os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        raise refused("written", path, error) from error
    except BaseException:
        _remove(temporary)
        raise
    with suppress(OSError):  # the file is there; some file systems sync no folders
        _sync(folder)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file at ``path``, to read.

    Raises:
        CheckpointNotFound: there is none.
        CheckpointFileError: it is no file, or cannot be read.
    """
    try:
        _looked_at(path)
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise refused("read", path, error, CheckpointNotFound) from error
    except OSError as error:
        raise refused("read", path, error) from error


def _looked_at(path: str) -> os.stat_result | None:
    """The status of the regular file at ``path``; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    return found


def _made(start: str, before: os.stat_result | None) -> tuple[str, BinaryIO]:
    """A new file, locked while it is open, with the mode and owner of the one it replaces."""
    while True:
        path = f"{start}{os.getpid()}-{secrets.token_hex(4)}"
        mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        file = os.fdopen(descriptor, "wb")
        with suppress(OSError):  # some file systems have no locks: then nobody clears, either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.exists(path):  # else another save cleared it before it was locked
            break
        file.close()
    if before is not None:
        with suppress(OSError):  # only root gives files away
            os.fchown(descriptor, before.st_uid, before.st_gid)
        with suppress(OSError):
            os.fchmod(descriptor, mode)
    return path, file


def _clear(folder: str, start: str) -> None:
    """Remove files with this prefix whose writing process has ended, and its lock with it."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist")
    for name in os.listdir(folder):
        if name.startswith(start) and _MADE.fullmatch(name[len(start) :]):
            with suppress(OSError):
                _remove_if_left(os.path.join(folder, name))


def _remove_if_left(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with suppress(OSError):  # it has been renamed already
        os.unlink(path)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refused(
    what: str,
    path: str,
    error: OSError,
    kind: type[CheckpointFileError] = CheckpointFileError,
    fix: str = "",
) -> CheckpointFileError:
    """The error to raise where a path cannot be ``what``, ``written`` or ``read``."""
    if not fix and what == "written" and error.errno == errno.EISDIR:
        fix = "name a file in that folder, or choose another path."
    found = kind(f"{path} cannot be {what}: {error.strerror or error}.", fix=fix)
    found.errno, found.filename = error.errno, path
    return found
