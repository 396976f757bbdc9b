"""The folders of a checkpoint: one for each tensor, with its ``meta`` and its bytes, ``out``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import torch

from ....artifact.tensors import memory_of
from ....errors import CheckpointDamaged
from .dtypes import from_file, in_file
from .meta import LONGEST, parsed, size_of

META, OUT = "meta", "out"


class Folder:
    """A directory that is held open; nothing is followed out of it.

    Reading raises CheckpointDamaged for a link, and for what is no file.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Read no more."""
        os.close(self._folder)

    def names(self) -> list[str]:
        """What is in it, sorted."""
        return sorted(os.listdir(self._folder))

    def has(self, name: str, inner: str = "") -> bool:
        """True where there is something of that name, be it a link."""
        try:
            os.stat(
                f"{name}/{inner}" if inner else name, dir_fd=self._folder, follow_symlinks=False
            )
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file in it, to read."""
        with _opened(name, self._folder) as file:
            yield file

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of the folder ``name``, on the CPU.

        Raises:
            CheckpointDamaged: it is not whole, or leads elsewhere. Before any memory is taken.
        """
        if name in ("", os.curdir, os.pardir) or "/" in name or "\0" in name:
            raise CheckpointDamaged(f"the name {name!r:.80} is none of a folder in it.")
        try:
            folder = _no_link(name, os.O_DIRECTORY, self._folder)
            try:
                return _tensor(folder)
            finally:
                os.close(folder)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{name!r:.80}: {error.what}", fix=error.way_out) from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointDamaged(f"the folder {name!r:.80} is not whole.") from error


def _tensor(folder: int) -> torch.Tensor:
    with _opened(META, folder) as file:
        text = file.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise CheckpointDamaged("its meta is none that OneFlow writes.")
    shape, dtype = parsed(text.decode())
    with _opened(OUT, folder) as file:
        there, wanted = os.fstat(file.fileno()).st_size, size_of(shape, dtype)
        if there != wanted:
            raise CheckpointDamaged(
                f"its values take {there:,} bytes; of {dtype} and shape {shape} they take "
                f"{wanted:,}."
            )
        raw = torch.empty(shape, dtype=in_file(dtype), device="cpu")
        _fill(memory_of(raw), file)
    return from_file(raw, dtype)


def _fill(memory: memoryview, file: BinaryIO) -> None:
    while memory:
        read = file.readinto(memory)  # type: ignore[attr-defined]  # of a file that is read
        if not read:
            raise CheckpointDamaged("its values end too early.")
        memory = memory[read:]


@contextmanager
def _opened(name: str, folder: int) -> Iterator[BinaryIO]:
    descriptor = _no_link(name, os.O_NONBLOCK, folder)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointDamaged(f"{name} is no file.")
        yield file


def _no_link(name: str, flags: int, folder: int) -> int:
    if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise CheckpointDamaged(
            f"{name!r:.80} is a link.", fix="copy the checkpoint with cp -rL, and load the copy."
        )
    both = flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, both, dir_fd=folder)
