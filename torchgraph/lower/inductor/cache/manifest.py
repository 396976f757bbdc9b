"""The manifest of an entry: the hash of every file in it, signed with the cache's secret.

It is the whole list. Inductor looks for files by names that anybody can compute, and runs what it
finds: an entry with a file more than its manifest is not used.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

MANIFEST = "manifest.json"
_SIGNATURE = "mac"


class _Unfit(Exception):
    """Why an entry is not used."""


def sign(folder: Path, key: str, secret: bytes) -> None:
    """Make a new entry of what is in ``folder``: nobody else can read it, all of it is listed."""
    for path, found in _inside(folder):
        if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
            path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
        else:
            path.unlink()  # a link or a socket: nothing that could be signed
    said: dict[str, Any] = {
        "key": key,
        "torch": torch.__version__,
        "made": time.time(),
        "folders": sorted(_folders(folder)),
        "files": {name: _hash(folder / name) for name in sorted(_files(folder))},
    }
    written = {**said, _SIGNATURE: _signature(said, secret)}
    (folder / MANIFEST).touch(mode=0o600)
    (folder / MANIFEST).write_text(json.dumps(written), encoding="utf-8")


def problem(entry: Path, key: str, secret: bytes) -> str:
    """Why what is in ``entry`` is not what was signed for ``key``; empty when it is."""
    try:
        _check_owner(entry)
        expected = _signed(entry, key, secret)
        if set(expected["folders"]) != set(_folders(entry)):
            return "it has other folders than were signed"
        files = expected["files"]
        if extra := sorted(set(_files(entry)) - set(files)):
            return f"nobody signed {extra[0]}"
        for name, wanted in files.items():
            if not hmac.compare_digest(_hash(entry / name), wanted):
                return f"{name} is not as it was written"
    except _Unfit as unfit:
        return str(unfit)
    # What the file holds may be anything, so anything may fail.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"it is not whole ({type(error).__name__}: {error})"
    return ""


def unverified(entry: Path) -> dict[str, Any]:
    """What the manifest says, not verified: for people to read. Empty where nothing can be read."""
    try:
        found = json.loads(_read(entry / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _signed(entry: Path, key: str, secret: bytes) -> dict[str, Any]:
    found = json.loads(_read(entry / MANIFEST))
    given = found.pop(_SIGNATURE, "")
    if not hmac.compare_digest(given, _signature(found, secret)):
        raise _Unfit("its manifest is not signed by this cache")
    if found["key"] != key:
        raise _Unfit("it was made for something else")
    signed: dict[str, Any] = found
    return signed


def _signature(found: dict[str, Any], secret: bytes) -> str:
    text = json.dumps(found, sort_keys=True)
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _check_owner(entry: Path) -> None:
    """Each file and folder is the user's, has one name, and nobody else may write to it."""
    for path, found in chain([(entry, entry.lstat())], _inside(entry)):
        name = path.name if path == entry else str(path.relative_to(entry))
        is_folder = stat.S_ISDIR(found.st_mode)
        if not is_folder and not stat.S_ISREG(found.st_mode):
            raise _Unfit(f"{name} is neither a file nor a folder")
        if found.st_uid != os.geteuid():
            raise _Unfit(f"{name} belongs to another user")
        if found.st_mode & 0o022:
            raise _Unfit(f"others may write to {name}")
        if not is_folder and found.st_nlink > 1:
            raise _Unfit(f"{name} has another name elsewhere")


def _inside(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All that is below a folder; links are not followed."""
    with os.scandir(folder) as found:
        children = list(found)
    for child in children:
        yield Path(child.path), child.stat(follow_symlinks=False)
        if child.is_dir(follow_symlinks=False):
            yield from _inside(Path(child.path))


def _files(folder: Path) -> Iterator[str]:
    for path, found in _inside(folder):
        name = str(path.relative_to(folder))
        if not stat.S_ISDIR(found.st_mode) and name != MANIFEST:
            yield name


def _folders(folder: Path) -> Iterator[str]:
    for path, found in _inside(folder):
        if stat.S_ISDIR(found.st_mode):
            yield str(path.relative_to(folder))


def _hash(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read()
