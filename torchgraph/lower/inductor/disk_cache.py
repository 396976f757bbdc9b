"""DiskCache: compiled regions on disk, for this and for later processes of the same user.

An entry is a directory that Inductor can load from, with a manifest: the hash of every file in it,
signed with a secret of the user's. It is made elsewhere and renamed into place, so that it is there
whole or not at all; when two processes make the same one, the first stays. An entry is code that
will run, so the directory is the user's alone (`cache.private`), and only what was signed there is
used. Who makes an entry, or has found one, holds a lock on it; what a killed process left has none.
"""

from __future__ import annotations

import functools
import os
import tempfile
import weakref
from pathlib import Path

from ...environment import cache_directory, cache_limit
from ...errors import BackendWarning, warn
from .cache import entries
from .cache.locks import Lock
from .cache.manifest import problem, sign
from .cache.private import NotPrivate, private_directory
from .cache.secret import secret
from .cache.temporary import temporary_directory


class DiskCache:
    """Entries by key under one directory, made when it is first needed, with mode 0700.

    Raises:
        InvalidOption: TORCHGRAPH_CACHE_LIMIT says no size.
    """

    def __init__(self, root: Path | None = None) -> None:
        given = root or cache_directory()
        self._given = Path(os.path.abspath(given)) if given else None
        self._limit = cache_limit()
        self._opened: tuple[Path, bytes] | None = None
        self._making: dict[Path, Lock | None] = {}

    def find(self, key: str) -> Path | None:
        """The entry of that key; None when there is none, or one that is not whole (a warning).

        It stays as long as this object does.
        """
        root, signed_with = self._open()
        entry = root / key
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
        wrong = problem(entry, key, signed_with)
        if wrong:
            _refuse(entry, wrong)
            return None
        entries.touch(entry)
        return entry

    def begin(self) -> Path:
        """An empty directory to make an entry in; what killed processes left is removed."""
        root = self.root
        entries.sweep(root)
        made = Path(tempfile.mkdtemp(prefix=entries.MAKING, dir=root))
        self._making[made] = Lock.of(made)
        return made

    def keep(self, made: Path, key: str) -> Path:
        """Put what was made in place; when another process was faster, its entry stays.

        Entries that were not used for the longest time go, when all take more than the limit.
        """
        root, signs_with = self._open()
        entry = root / key
        try:
            sign(made, key, signs_with)
            made.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
            entries.discard(made)
        finally:
            lock = self._making.pop(made, None)
            if lock is not None:
                lock.release()
        entries.shrink(root, self._limit, spare=entry, recent=entries.RECENT)
        return entry

    @property
    def root(self) -> Path:
        """The directory."""
        return self._open()[0]

    def _open(self) -> tuple[Path, bytes]:
        if self._opened is None or not self._opened[0].is_dir():
            self._opened = _opened(self._given)
            entries.sweep(self._opened[0])
        return self._opened


def _refuse(entry: Path, wrong: str) -> None:
    gone = entries.discard(entry)
    then = "It is compiled anew" if gone else "Not all of it is yours: remove it yourself"
    warn(f"{entry} is not used: {wrong}. {then}.", BackendWarning)


def _opened(given: Path | None) -> tuple[Path, bytes]:
    """The directory with its secret, or one that ends with this process."""
    try:
        if given is None:
            raise NotPrivate("there is no home directory")
        root = private_directory(given)
        return root, secret(root)
    except NotPrivate as why:
        root = private_directory(_instead_of(given, str(why)))
    except OSError as error:
        root = private_directory(_instead_of(given, f"{given} cannot be used ({error})"))
    return root, secret(root)


@functools.cache
def _instead_of(given: Path | None, why: str) -> Path:
    warn(
        f"Compiled code is not kept for the next process: {why}. Name another directory in "
        "TORCHGRAPH_CACHE_DIR.",
        BackendWarning,
    )
    return temporary_directory()
