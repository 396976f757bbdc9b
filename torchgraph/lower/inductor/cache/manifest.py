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
from pathlib import Path
from typing import Any

import torch

MANIFEST = "manifest.json"
_SIGNATURE = "mac"


class _Unfit(Exception):
    """Why an entry is not used."""


def sign(folder: Path, key: str, secret: bytes) -> None:
    """Make a new entry of what is in ``folder``: nobody else can read it, all of it is listed."""
    found = inside(folder)
    for name, status in found.items():
        if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            (folder / name).chmod(stat.S_IMODE(status.st_mode) & 0o700)
        else:
            (folder / name).unlink()  # a link or a socket: nothing that could be signed
    files = sorted(name for name, status in found.items() if stat.S_ISREG(status.st_mode))
    says: dict[str, Any] = {
        "key": key,
        "torch": torch.__version__,
        "made": time.time(),
        "size": sum(found[name].st_size for name in files),
        "folders": _folders(found),
        "files": {name: _hash(folder / name) for name in files},
    }
    written = {**says, _SIGNATURE: _signature(says, secret)}
    (folder / MANIFEST).touch(mode=0o600)
    (folder / MANIFEST).write_text(json.dumps(written), encoding="utf-8")


def problem(entry: Path, key: str, secret: bytes) -> str:
    """Why what is in ``entry`` is not what was signed for ``key``; empty when it is."""
    try:
        _check_owner(entry.name, entry.lstat())
        found = inside(entry)
        for name, status in found.items():
            _check_owner(name, status)
        expected = _signed(entry, key, secret)
        if expected["folders"] != _folders(found):
            return "it has other folders than were signed"
        files = expected["files"]
        if extra := sorted(set(found) - set(files) - set(expected["folders"]) - {MANIFEST}):
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


def inside(folder: Path) -> dict[str, os.stat_result]:
    """All that is below a folder, by its path from there; links are not followed."""
    found: dict[str, os.stat_result] = {}
    left = [""]
    while left:
        below = left.pop()
        with os.scandir(f"{folder}/{below}") as children:
            for child in children:
                name = below + child.name
                found[name] = child.stat(follow_symlinks=False)
                if child.is_dir(follow_symlinks=False):
                    left.append(f"{name}/")
    return found


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


def _check_owner(name: str, found: os.stat_result) -> None:
    """A file or folder is the user's, a file has one name, and nobody else may write to it."""
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        raise _Unfit(f"{name} is neither a file nor a folder")
    if found.st_uid != os.geteuid():
        raise _Unfit(f"{name} belongs to another user")
    if found.st_mode & 0o022:
        raise _Unfit(f"others may write to {name}")
    if not is_folder and found.st_nlink > 1:
        raise _Unfit(f"{name} has another name elsewhere")


def _folders(found: dict[str, os.stat_result]) -> list[str]:
    return sorted(name for name, status in found.items() if stat.S_ISDIR(status.st_mode))


def _hash(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read()
