"""What a compiling process may import: what this one did, and nothing that others can replace."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from pathlib import Path

import torch

_PACKAGES = ("torch", "torchgraph")


def packages() -> dict[str, Path]:
    """The folders of torch and torchgraph, as this process imported them."""
    ours = Path(__file__).parents[3]
    return dict(zip(_PACKAGES, (Path(torch.__file__).parent, ours), strict=True))


def search_path() -> list[str]:
    """The entries of ``sys.path`` that another process of this user may search for the rest.

    The current directory and the script's are left out: a compiler needs nothing of theirs, and
    they may lie where everybody writes. So is every other entry that another user can write, but
    the one with torch, where whoever can write could replace torch itself.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    left_out = {os.getcwd(), os.path.dirname(os.path.abspath(script or "."))}
    left_out = {os.path.realpath(path) for path in left_out}
    of_torch = Path(torch.__file__).parents[1].resolve()
    found = {entry: Path(entry).resolve() for entry in sys.path if os.path.isabs(entry)}
    return [
        entry
        for entry, path in found.items()
        if path == of_torch or (str(path) not in left_out and is_ours(path))
    ]


def is_ours(path: Path) -> bool:
    """True where nobody but this user and the system's can put another file in a path's place."""
    return all(
        _is_ours(part, is_last=part == path) for part in (path, *path.parents) if part.exists()
    )


def _is_ours(path: Path, *, is_last: bool) -> bool:
    found = path.stat()
    if found.st_uid not in (0, os.getuid()):
        return False
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _alone(found.st_gid)):
        # Of a directory with the sticky bit, others may not rename what is ours.
        return bool(found.st_mode & stat.S_ISVTX) and not is_last
    return True


def _alone(group: int) -> bool:
    """True for a group that is the user's own, as many systems make one for each user."""
    if group == 0:
        return True
    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
