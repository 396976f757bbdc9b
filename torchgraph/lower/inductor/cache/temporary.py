"""Scratch: a private folder of this process, gone with it, or swept when it was killed."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from ....errors import InvalidOption
from .leftovers import remove_if_left
from .locks import Lock
from .private import NotPrivate, steps_are_safe

_PREFIX = "torchgraph-scratch-"
_NAME = re.compile(_PREFIX + r"(\d+)-\w{8}", re.ASCII)
"""The process that made it, and eight letters. Nothing else is swept."""
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
"""What Inductor can put into the command line of a compiler: it quotes no path."""
_ODD = re.compile(r"[^\w.-]", re.ASCII)


class Scratch:
    """A new folder with mode 0700, locked for as long as this process lives.

    Args:
        wanted: a private directory, which is taken when its path is plain. Else, and without one,
            it is one for temporary files.

    Raises:
        InvalidOption: every directory for temporary files is open to others.
        OSError: it cannot be made.
    """

    def __init__(self, wanted: Path | None = None) -> None:
        parent = wanted if wanted is not None and is_plain(wanted) else _for_temporary_files()
        _sweep(parent)
        self._maker = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{self._maker}-", dir=parent))
        self._lock = Lock.of(self.path)

    def remove(self) -> None:
        """Remove the folder and what is in it. In a fork of the process that made it: nothing."""
        if os.getpid() != self._maker:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def plain(self, path: Path) -> Path:
        """``path``, or where it is not plain a link to it in the folder."""
        if is_plain(path):
            return path
        link = self.path / _ODD.sub("_", path.name)
        link.symlink_to(path)
        return link

    def copy_of(self, folder: Path) -> Path:
        """A copy of a folder: Inductor writes where it loads from."""
        return Path(shutil.copytree(folder, self.path / folder.name, symlinks=True))


def temporary_directory() -> Path:
    """A private directory that ends with this process.

    Raises:
        InvalidOption; OSError: as `Scratch`.
    """
    scratch = Scratch()
    atexit.register(scratch.remove)
    return scratch.path


def is_plain(path: Path) -> bool:
    """True where a compiler's command line can hold the path: no space, no quote, no ``$``."""
    return _PLAIN.fullmatch(str(path)) is not None


def _for_temporary_files() -> Path:
    why = ""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        try:
            real = steps_are_safe(Path(parent))
        except (NotPrivate, OSError) as error:
            why = why or str(error)
            continue
        if is_plain(real) and os.access(real, os.W_OK | os.X_OK):
            return real
    raise InvalidOption(
        f"No directory for temporary files can be used: {why or 'their names are odd'}.",
        fix="name a directory of your own in TMPDIR.",
    )


def _sweep(parent: Path) -> None:
    """Remove what killed processes left."""
    for folder in parent.glob(f"{_PREFIX}*"):
        maker = _NAME.fullmatch(folder.name)
        if maker is not None:
            remove_if_left(folder, int(maker[1]))
