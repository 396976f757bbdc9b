"""DiskCache: compiled regions on disk, for this and for later processes of the same user.

An entry is a directory that Inductor can load from, with a manifest: the hash of every file in it.
It is made in a scratch folder and renamed into place, so that it is there whole or not at all; when
two processes make the same one, the first stays. An entry is code that will run, so the directory
is the user's alone (`cache.private`). Who has found an entry holds a lock on it.
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from pathlib import Path

from ...environment import cache_directory, cache_limit
from ...errors import BackendWarning, warn
from .cache import entries
from .cache.private import NotPrivate, private_directory
from .cache.scratch import Lock, Scratch, sweep


class DiskCache:
    """Entries by key under one directory, made when it is first needed, with mode 0700.

    Raises:
        InvalidOption: TORCHGRAPH_CACHE_LIMIT says no size.
    """

    def __init__(self, root: Path | None = None) -> None:
        given = root or cache_directory()
        self._given = Path(os.path.abspath(given)) if given else None
        self._limit = cache_limit()
        self._root: Path | None = None
        self._making: dict[Path, Scratch] = {}

    def find(self, key: str) -> Path | None:
        """The entry of that key; None when there is none, or one that is not whole (a warning).

        It stays as long as this object does.
        """
        entry = self.root / key
        if not os.path.lexists(entry):
            return None
        try:
            lock = Lock.of(entry, shared=True)
        except BlockingIOError:
            return None  # it is being removed
        if lock is not None:
            weakref.finalize(self, lock.release)
            if not lock.is_of(entry):
                return None  # it was
        wrong = entries.problem(entry, key)
        if wrong:
            gone = entries.discard(entry)
            then = "It is compiled anew" if gone else "Not all of it is yours: remove it yourself"
            warn(f"{entry} is not used: {wrong}. {then}.", BackendWarning)
            return None
        entries.touch(entry)
        return entry

    def begin(self) -> Path:
        """An empty directory to make an entry in; what killed processes left is removed."""
        scratch = Scratch(self.root)
        self._making[scratch.path] = scratch
        return scratch.path

    def keep(self, made: Path, key: str) -> Path:
        """Put what was made in place; when another process was faster, its entry stays.

        Entries that were not used for the longest time go, when all take more than the limit.
        """
        entry = self.root / key
        scratch = self._making.pop(made)
        try:
            entries.seal(made, key)
            made.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
        finally:
            scratch.remove()
        entries.shrink(self.root, self._limit, spare=entry, recent=entries.RECENT)
        return entry

    @property
    def root(self) -> Path:
        """The directory, or one that ends with this process where that one cannot be used."""
        if self._root is None or not self._root.is_dir():
            self._root = _opened(self._given)
            sweep(self._root)
        return self._root


def _opened(given: Path | None) -> Path:
    try:
        if given is None:
            raise NotPrivate("there is no home directory")
        return private_directory(given)
    except NotPrivate as error:
        why = str(error)
    except OSError as error:
        why = f"{given} cannot be used ({error})"
    return private_directory(_instead_of(given, why))


@functools.cache
def _instead_of(given: Path | None, why: str) -> Path:
    warn(
        f"Compiled code is not kept for the next process: {why}. Name another directory in "
        "TORCHGRAPH_CACHE_DIR.",
        BackendWarning,
    )
    scratch = Scratch()
    atexit.register(scratch.remove)
    return scratch.path
