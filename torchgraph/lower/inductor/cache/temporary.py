"""Private directories that end with this process, or are removed by a later one."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from ....errors import InvalidOption
from .entries import sweep
from .locks import Lock
from .private import NotPrivate, steps_are_safe


def temporary_directory(purpose: str) -> Path:
    """A new private directory, removed when this process ends; else when another makes one.

    Raises:
        InvalidOption: every directory for temporary files is open to others.
    """
    prefix, why = f"torchgraph-{purpose}-", ""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        try:
            real = steps_are_safe(Path(parent))
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=real))
        except (NotPrivate, OSError) as error:
            why = why or str(error)
            continue
        Lock.of(made)  # until the process ends, however it does
        sweep(real, prefix)
        atexit.register(_remove, made, os.getpid())
        return made
    raise InvalidOption(
        f"No directory for temporary files is safe from other users: {why}.",
        fix="name a directory of your own in TMPDIR.",
    )


def own_copy(folder: Path) -> Path:
    """A copy of a folder that this process alone uses."""
    place = tempfile.mkdtemp(dir=_copies(os.getpid()))
    return Path(shutil.copytree(folder, Path(place, folder.name), symlinks=True))


@functools.cache
def _copies(process: int) -> Path:
    """Where they are. A child that was forked has a place of its own."""
    return temporary_directory("loaded")


def _remove(path: Path, maker: int) -> None:
    if os.getpid() == maker:  # not in a child that was forked
        shutil.rmtree(path, ignore_errors=True)
