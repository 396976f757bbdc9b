"""DiskCache: compiled regions on disk, for this and for later processes of the same user.

An entry is a directory that Inductor can load from, and a manifest with the hash of every file in
it. It is made elsewhere and renamed into place, so that it is there whole or not at all; when two
processes make the same one, the first stays. The directory belongs to the user alone: an entry is
code that will run. Who makes an entry holds a lock on its directory; what a killed process left has
none, and goes when the next entry is made.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from ...environment import cache_directory
from ...errors import BackendWarning, warn

_MANIFEST = "manifest.json"
_MAKING = "making-"
_YOUNG = 60.0
"""Seconds for which a directory without a lock is left alone: its maker may be about to lock it."""


class DiskCache:
    """Entries by key under one directory, made when it is first needed, with mode 0700."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or cache_directory()
        self._checked = False
        self._locks: dict[Path, int] = {}

    def find(self, key: str) -> Path | None:
        """The entry of that key; None when there is none, or one that is not whole (a warning)."""
        entry = self.root / key
        if not entry.exists():
            return None
        problem = _problem(entry, key)
        if problem:
            warn(f"{entry} is not used: {problem}. It is compiled anew.", BackendWarning)
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return entry

    def begin(self) -> Path:
        """An empty directory to make an entry in; what killed processes left is removed."""
        for left in self.root.glob(f"{_MAKING}*"):
            _remove_if_left(left)
        made = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self.root))
        lock = _locked(made)
        if lock is not None:
            self._locks[made] = lock
        return made

    def keep(self, made: Path, key: str) -> Path:
        """Put what was made in place; when another process was faster, its entry stays."""
        files = [path for path in sorted(made.rglob("*")) if path.is_file()]
        hashes = {str(path.relative_to(made)): _hash(path) for path in files}
        (made / _MANIFEST).write_text(json.dumps({"key": key, "files": hashes}), encoding="utf-8")
        entry = self.root / key
        try:
            made.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
            shutil.rmtree(made, ignore_errors=True)
        finally:
            if made in self._locks:
                os.close(self._locks.pop(made))
        return entry

    @property
    def root(self) -> Path:
        """The directory."""
        if not self._checked:
            self._root = _private(self._root)
            self._checked = True
        return self._root


def _private(root: Path) -> Path:
    """``root`` when it is, or can be made, the user's own; else a directory that ends with us."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = root.stat()
        if found.st_uid != os.getuid():
            problem = "belongs to another user"
        elif stat.S_IMODE(found.st_mode) & 0o077:
            root.chmod(0o700)
            return root
        elif not os.access(root, os.W_OK | os.X_OK):
            problem = "is not writable"
        else:
            return root
    except OSError as error:
        problem = f"cannot be used ({error})"
    warn(
        f"{root} {problem}: compiled code is not kept for the next process. Name another directory "
        "in TORCHGRAPH_CACHE_DIR.",
        BackendWarning,
    )
    temporary = tempfile.mkdtemp(prefix="torchgraph-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


def _locked(folder: Path) -> int | None:
    """An open lock of the directory; None where another has it, or where there are no locks."""
    try:
        found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found


def _remove_if_left(folder: Path) -> None:
    """Remove a directory whose maker is gone: the system gave its lock back, however it ended."""
    with contextlib.suppress(OSError):  # another process was faster
        if time.time() - folder.stat().st_mtime < _YOUNG:
            return
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _problem(entry: Path, key: str) -> str:
    try:
        manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["key"] != key:
            return "it was made for something else"
        for name, expected in manifest["files"].items():
            if _hash(entry / name) != expected:
                return f"{name} is not as it was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it is not whole ({type(error).__name__}: {error})"
    return ""


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
