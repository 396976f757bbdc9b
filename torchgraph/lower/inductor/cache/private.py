"""Whether a directory is the user's alone: nobody else can write to it, or replace it by another.

Every directory on the way from the root of the file system belongs to the user or to root, and
nobody else may write to it; where everybody may and the sticky bit is set, as in /tmp, what comes
next belongs to the user or to root. Then no name on the way can be changed by another between a
look and a use, and paths are as good as open directories. Links are followed by the same rules.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
import sys
from contextlib import suppress
from pathlib import Path

_MOST_LINKS = 40
_ACL = "system.posix_acl_access"


class NotPrivate(Exception):
    """Others could write to it, or put something else in its place; the message says why."""


def private_directory(path: Path) -> Path:
    """The real path of a directory that is the user's alone, made with mode 0700 if it is missing.

    One that others may read is closed to them, but not through a link.

    Raises:
        NotPrivate: it is not the user's alone; nothing has been changed.
        OSError: it cannot be made, or read.
    """
    real = unwritable_by_others(path)
    if not os.access(real, os.W_OK | os.X_OK):
        raise NotPrivate(f"{real} is not writable")
    if real.stat().st_mode & 0o077 and not Path(os.path.abspath(path)).is_symlink():
        real.chmod(0o700)
    return real


def unwritable_by_others(path: Path) -> Path:
    """The real path of a directory of the user's that nobody else can write to; it may be read.

    Raises:
        NotPrivate: there is somebody who can; nothing has been changed.
        OSError: it is missing and cannot be made, or cannot be read.
    """
    real = steps_are_safe(path)
    found = real.lstat()
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{real} belongs to another user")
    if _others_may_write(real, found):
        raise NotPrivate(f"others may write to {real} (chmod go-w takes that away)")
    return real


def nobody_else_writes(path: Path) -> bool:
    """True where nobody but the user and root can change what lies at an existing path."""
    if not path.exists():
        return False
    try:
        real = steps_are_safe(path.parent) / path.name
        return not _others_may_write(real, _of_us(real))
    except (NotPrivate, OSError):
        return False


def steps_are_safe(path: Path) -> Path:
    """The real path, each step of it looked at; directories that are missing are made.

    Raises:
        NotPrivate: somebody else could put another directory in the place of one of them.
        OSError: one cannot be made, or looked at.
    """
    path = Path(os.path.abspath(path))
    at = Path(path.anchor)
    _look_at(at, at.lstat())
    left = list(reversed(path.parts[1:]))
    links = 0
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        one = at / name
        found = _made(one)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            _is_of_us(one, found)
            if links > _MOST_LINKS:
                raise NotPrivate(f"{path} leads through too many links")
            target = Path(os.readlink(one))
            at = Path(target.anchor) if target.is_absolute() else at
            left.extend(reversed([part for part in target.parts if part != target.anchor]))
            continue
        _look_at(one, found)
        at = one
    return at


def _made(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except FileNotFoundError:
        with suppress(FileExistsError):  # another process was faster: its directory is looked at
            path.mkdir(mode=0o700)
        return path.lstat()


def _look_at(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate(f"{path} is not a directory")
    _is_of_us(path, found)
    if not found.st_mode & stat.S_ISVTX and _others_may_write(path, found):
        raise NotPrivate(f"others may write to {path}")


def _of_us(path: Path) -> os.stat_result:
    found = path.lstat()
    _is_of_us(path, found)
    return found


def _is_of_us(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise NotPrivate(f"{path} belongs to another user")


def _others_may_write(path: Path, found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    # With an access control list the bits of the group stand for all that it names.
    is_shared = not _is_alone_in(found.st_gid) or _has_acl(path)
    return bool(found.st_mode & stat.S_IWGRP) and is_shared


@functools.cache
def _is_alone_in(group: int) -> bool:
    """True for a group with no other member than the user and root, as many systems make them."""
    try:
        members = set(grp.getgrgid(group).gr_mem)
        users = pwd.getpwall()
    except (KeyError, OSError):
        return False
    trusted = {user.pw_name for user in users if user.pw_uid in (0, os.geteuid())}
    return members | {user.pw_name for user in users if user.pw_gid == group} <= trusted


def _has_acl(path: Path) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return _ACL in os.listxattr(path)
    except OSError:  # a file system without attributes has no lists either
        return False
