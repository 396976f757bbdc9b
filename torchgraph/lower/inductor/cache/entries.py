"""The entries of a cache: whether one is whole and the user's, which go first, and how they go.

An entry is a directory with a manifest: the SHA-256 of every file in it, and of the manifest
itself. It is the whole list. Inductor looks for files by names that anybody can compute, and runs
what it finds: an entry with a file more than its manifest is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from .scratch import Lock, Scratch

MANIFEST = "manifest.json"
_CHECKSUM = "checksum"
_KEY = re.compile("[0-9a-f]{64}")
RECENT = 300.0
"""Seconds for which an entry that was used stays, however full the cache is."""

# --- one entry ------------------------------------------------------------------------------------


def seal(folder: Path, key: str) -> None:
    """Make a new entry of what is in ``folder``: nobody else can read it, all of it is listed."""
    for name, status in _inside(folder).items():
        if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            (folder / name).chmod(stat.S_IMODE(status.st_mode) & 0o700)
        else:
            (folder / name).unlink()  # a link or a socket: nothing that has a content
    says = {"key": key, "torch": torch.__version__, "content": _content(folder)}
    (folder / MANIFEST).touch(mode=0o600)
    text = json.dumps({**says, _CHECKSUM: _checksum(says)})
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def problem(entry: Path, key: str) -> str:
    """Why ``entry`` is not what was made for ``key``; empty when it is."""
    try:
        if wrong := _unfit(entry.name, entry.lstat()):
            return wrong
        for name, status in _inside(entry).items():
            if wrong := _unfit(name, status):
                return wrong
        says = json.loads(_read(entry / MANIFEST))
        if says.pop(_CHECKSUM, "") != _checksum(says):
            return f"{MANIFEST} is not as it was written"
        if says["key"] != key:
            return "it was made for something else"
        found, wanted = _content(entry), says["content"]
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                return f"{name} is not as it was written"
    # What the file holds may be anything, so anything may fail.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"it is not whole ({type(error).__name__}: {error})"
    return ""


def touch(path: Path) -> None:
    """Take down that an entry is used now."""
    with suppress(OSError):  # it is used all the same
        os.utime(path / MANIFEST)


def remove(path: Path) -> bool:
    """Remove an entry, unless it is in use or somebody else's; True when it is gone."""
    try:
        lock = Lock.of(path)
    except BlockingIOError:
        return False
    if lock is None and path.is_dir() and not path.is_symlink():
        return False  # no locks here: nobody knows whether it is in use
    gone = discard(path)
    if lock is not None:
        lock.release()
    return gone


def discard(path: Path) -> bool:
    """Remove what cannot be used, unless somebody else's is in it; True when it is gone.

    It is renamed first: nobody finds half of it.
    """
    if not _is_ours(path):
        return False
    try:
        aside = Scratch(path.parent)
    except OSError:
        return False
    try:
        path.rename(aside.path / path.name)
    except OSError:
        return not os.path.lexists(path)
    finally:
        aside.remove()
    return True


# --- all of them ----------------------------------------------------------------------------------


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
    for path in root.glob("*"):
        # The user may have named a directory that other things are in, too.
        if path.is_symlink() or not os.path.lexists(path / MANIFEST):
            continue
        says = _unverified(path)
        if says.get("key") == path.name or _KEY.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process removes it
                used = (path / MANIFEST).lstat().st_mtime
                version = says.get("torch")
                known = version if isinstance(version, str) else ""
                found.append(Entry(path, _size(path), path.lstat().st_mtime, used, known))
    return sorted(found, key=lambda entry: entry.used)


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


# --- what is in a folder --------------------------------------------------------------------------


def _inside(folder: Path) -> dict[str, os.stat_result]:
    """All that is below a folder, by its path from there; links are not followed."""
    found = {}
    for at, folders, files in os.walk(folder, onerror=_fail):
        for path in (os.path.join(at, name) for name in (*folders, *files)):
            found[os.path.relpath(path, folder)] = os.lstat(path)
    return found


def _fail(error: OSError) -> NoReturn:
    raise OSError(error.errno, error.strerror, error.filename)  # one without frames


def _content(folder: Path) -> dict[str, str]:
    """The hash of each file below a folder but for the manifest, and the name of each folder."""
    return {
        name: "" if stat.S_ISDIR(status.st_mode) else _hash(_read(folder / name))
        for name, status in _inside(folder).items()
        if name != MANIFEST
    }


def _checksum(says: dict[str, Any]) -> str:
    return _hash(json.dumps(says, sort_keys=True).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _unfit(name: str, found: os.stat_result) -> str:
    """Why a file or folder is not the user's alone, or has a second name; empty when it is."""
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        return f"{name} is neither a file nor a folder"
    if found.st_uid != os.geteuid():
        return f"{name} belongs to another user"
    if found.st_mode & 0o022:
        return f"others may write to {name}"
    return f"{name} has another name elsewhere" if not is_folder and found.st_nlink > 1 else ""


def _unverified(entry: Path) -> dict[str, Any]:
    """What a manifest says, for people to read. Empty where nothing can be read."""
    try:
        found = json.loads(_read(entry / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(path: Path) -> int:
    try:
        return sum(one.st_size for one in _inside(path).values() if stat.S_ISREG(one.st_mode))
    except OSError:  # parts of it are another user's, or another process removes it
        return 0


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
        below = _inside(path).values() if stat.S_ISDIR(found.st_mode) else ()
    except OSError:
        return False
    return all(one.st_uid == os.geteuid() for one in (found, *below))


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read()
