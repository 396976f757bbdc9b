"""The secret of a cache: 32 random bytes in a file that the user alone can read.

Manifests are signed with it. What another user put into the directory, at whatever time, has no
signature that fits.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from .private import NotPrivate

SECRET = ".key"
_LENGTH = 32


def secret(root: Path) -> bytes:
    """The secret of the cache in ``root``, a private directory; made anew where it is not secret.

    Raises:
        NotPrivate: its place is taken by something of another user's.
        OSError: it can be neither read nor written.
    """
    path = root / SECRET
    found = _read(path)
    if found is None:
        _make(path)
        found = _read(path)
    if found is None:
        raise NotPrivate(f"{path} cannot be kept secret")
    return found


def _read(path: Path) -> bytes | None:
    """What is in the file; None where it is missing, or not as `_make` makes it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        good = (
            stat.S_ISREG(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & 0o077
            and found.st_size == _LENGTH
        )
        return file.read() if good else None


def _make(path: Path) -> None:
    """Written under another name first: it is there whole or not at all. The first one stays."""
    _no_others(path)
    part = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask is
        file.write(secrets.token_bytes(_LENGTH))
    try:
        os.link(part, path)
    except OSError:  # there is one, or there are no hard links here
        if _read(path) is None:
            os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _no_others(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.lstat().st_uid != os.geteuid():
            raise NotPrivate(f"{path} belongs to another user")
