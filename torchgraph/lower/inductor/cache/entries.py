"""The entries of a cache: what they take, when they were used, which go first, and how they go."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .leftovers import remove_if_left
from .locks import Lock
from .manifest import MANIFEST, inside, unverified

MAKING = "making-"
"""Begins the names of entries that are not whole yet."""
_LEAVING = "leaving-"
"""Begins the names of entries that are being removed."""
_UNFINISHED = re.compile(f"(?:{MAKING}|{_LEAVING})" + r"\w{8}", re.ASCII)
"""Such names, as `tempfile.mkdtemp` ends them."""
_KEY = re.compile("[0-9a-f]{64}")
RECENT = 300.0
"""Seconds for which an entry that was used stays, however full the cache is."""


@dataclass(frozen=True)
class Entry:
    """One entry on disk, as it looks from outside: nothing of it is verified."""

    path: Path
    size: int
    """Bytes of all its files."""
    made: float
    used: float
    """When it was made, and found the last time: seconds since 1970."""
    torch: str
    """The version that compiled it; empty when unknown."""

    @property
    def is_ours(self) -> bool:
        """False when anything of it belongs to another user."""
        return _is_ours(self.path)


def entries(root: Path) -> list[Entry]:
    """What is in a cache, the least recently used first."""
    found = []
    for path in _children(root):
        told = unverified(path) if path.is_dir() and not path.is_symlink() else None
        # The user may have named a directory that other things are in, too.
        looks = _KEY.fullmatch(path.name) and os.path.lexists(path / MANIFEST)
        if told is not None and (told.get("key") == path.name or looks):
            with suppress(FileNotFoundError):  # another process removes it
                found.append(_entry(path, told))
    return sorted(found, key=lambda entry: entry.used)


def touch(path: Path) -> None:
    """Take down that an entry is used now."""
    with suppress(OSError):  # it is used all the same
        os.utime(path / MANIFEST)


def remove(path: Path) -> bool:
    """Remove an entry, unless it is in use or somebody else's; True when it is gone.

    It is renamed first: nobody finds half of it.
    """
    try:
        lock = Lock.of(path)
    except BlockingIOError:
        return False
    if lock is None and path.is_dir() and not path.is_symlink():
        return False  # no locks here: nobody knows whether it is in use
    gone = _taken_away(path)
    if lock is not None:
        lock.release()
    return gone


def discard(path: Path) -> bool:
    """Remove what cannot be used, even if somebody tried; True when it is gone."""
    return _taken_away(path)


def shrink(
    root: Path, limit: int, *, spare: Path | None = None, recent: float = 0.0
) -> list[Entry]:
    """Remove entries until the rest takes ``limit`` bytes; those that went.

    The least recently used go first; not ``spare``, and none used in the last ``recent`` seconds.
    """
    found = entries(root)
    total = sum(entry.size for entry in found)
    gone = []
    for entry in found:
        if total <= limit:
            break
        if entry.path != spare and time.time() - entry.used >= recent and remove(entry.path):
            total -= entry.size
            gone.append(entry)
    return gone


def sweep(root: Path) -> None:
    """Remove the directories that killed processes left: entries that were made, or removed."""
    for path in _children(root):
        if _UNFINISHED.fullmatch(path.name):
            remove_if_left(path)


def _taken_away(path: Path) -> bool:
    if not _is_ours(path):
        return False
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return True
        aside = Path(tempfile.mkdtemp(prefix=_LEAVING, dir=path.parent))
    except OSError:
        return False
    try:
        path.rename(aside)
    except OSError:
        aside.rmdir()
        return not os.path.lexists(path)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _entry(path: Path, told: Mapping[str, object]) -> Entry:
    def number(name: str) -> float | None:
        value = told.get(name)
        return value if isinstance(value, (int, float)) and 0 <= value < 1e18 else None

    folder = path.lstat()
    manifest = (path / MANIFEST).lstat() if told else folder
    size, made, version = number("size"), number("made"), told.get("torch")
    return Entry(
        path,
        _size(path) if size is None else int(size) + manifest.st_size,
        folder.st_mtime if made is None else made,
        manifest.st_mtime,
        version if isinstance(version, str) else "",
    )


def _size(path: Path) -> int:
    try:
        return sum(one.st_size for one in inside(path).values() if stat.S_ISREG(one.st_mode))
    except OSError:  # parts of it are another user's
        return 0


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
        below = inside(path).values() if stat.S_ISDIR(found.st_mode) else ()
    except OSError:
        return False
    return all(one.st_uid == os.geteuid() for one in (found, *below))


def _children(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as found:
            return [Path(child.path) for child in found]
    except OSError:
        return []
