"""Files: which are looked at, how they are read, and how one is written in place of another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .items import Item

LARGEST = 4_000_000
"""Bytes of a file that is looked at; longer ones are made by programs, not written by people."""
WORD = b"oneflow"
_NO_SCRIPTS = {"__pycache__", "node_modules"}
_IS_PYTHON = {".py", ".pyi"}
_IS_OTHER = {".sh", ".bash", ".ipynb", ".yaml", ".yml", ".toml", ".cfg", ".txt", ".mk"}


class Source(NamedTuple):
    """A file as it was read."""

    path: Path
    content: bytes

    @property
    def is_python(self) -> bool:
        return self.path.suffix in _IS_PYTHON

    @property
    def names_oneflow(self) -> bool:
        return WORD in self.content


def sources(root: Path) -> Iterator[Source | Item]:
    """The files at or below ``root``, sorted; items for those that are not read.

    Left out: hidden folders, ``__pycache__``, ``node_modules``, virtual environments.
    """
    for path in [root] if not root.is_dir() else _below(root):
        if path != root and path.suffix not in _IS_PYTHON | _IS_OTHER:
            continue
        if (found := _read(path, is_asked_for=path == root)) is not None:
            yield found


def _below(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if _may_hold_scripts(Path(folder, name)))
        yield from (Path(folder, name) for name in sorted(files))


def _may_hold_scripts(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in _NO_SCRIPTS
    return not (is_hidden or folder.is_symlink() or (folder / "pyvenv.cfg").exists())


def _read(path: Path, *, is_asked_for: bool) -> Source | Item | None:
    if path.is_symlink():
        if is_asked_for:
            return Item(path, 0, "a symbolic link", "name the file that it points to.")
        return None if path.suffix not in _IS_PYTHON else _link(path)
    try:
        if not path.is_file():
            return Item(path, 0, "no file", "it is neither a file nor a folder.")
        if path.stat().st_size > LARGEST:
            why = f"it has more than {LARGEST:,} bytes, and was not looked at."
            return Item(path, 0, "a large file", why, is_left=path.suffix in _IS_PYTHON)
        return Source(path, path.read_bytes())
    except OSError as error:
        return Item(path, 0, "cannot be read", f"{error.strerror}.")


def _link(path: Path) -> Item:
    why = "it was not followed; the file that it points to is ported where it lies."
    return Item(path, 0, "a symbolic link", why, is_left=False)


def replace(source: Source, content: bytes) -> Item | None:
    """Write a file anew, in one step; an item if it changed meanwhile, or cannot be written."""
    path = source.path
    try:
        if path.is_symlink() or path.read_bytes() != source.content:
            return Item(
                path, 0, "changed meanwhile", "it was left as it is; run the command again."
            )
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, path.stat().st_mode & 0o7777)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        return Item(path, 0, "cannot be written", f"{error.strerror}.")
    return None
