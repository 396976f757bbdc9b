"""``tg.save`` and ``tg.load``."""

from __future__ import annotations

import os
from typing import Any

from ..errors import CheckpointDamaged, InvalidOption
from ..options.checking import shown
from .files import opened, replaced
from .layout import read, write
from .tree import decoded, encoded


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save a state: dicts, lists and tuples of tensors and plain values. OneFlow: ``oneflow.save``.

    The file is written beside ``path``, synced to the disk and renamed, so that at any moment,
    killed or not, there is the old file or the new one, whole. Through a link, the file that it
    leads to is replaced. It is a safetensors file, so every viewer of those opens it.

    A tensor that lies in several places is stored once, and comes back as one. Parameters come back
    as plain tensors; views that overlap in part come back apart. While it is written, a tensor of a
    GPU, or one that is not contiguous, exists twice, one at a time.

    Raises:
        NotSavable: names what is no plain value by its path. Nothing is written.
        CheckpointFileError: no such folder, no room, no right. The file that was there is whole.
    """
    place = path_of(path)
    tree, tensors = encoded(obj)
    with replaced(place) as file:
        write(file, tree, tensors)


def load(path: str | os.PathLike[str]) -> Any:
    """Load a state that `save` wrote, its tensors on the CPU. OneFlow: ``oneflow.load``.

    No code runs that the file names, and nothing comes back unless each byte is as it was written.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointDamaged: it is cut, changed, or nothing that `save` wrote; says what it is.
        CheckpointFileError: it cannot be read.
    """
    place = path_of(path)
    with opened(place) as file:
        try:
            return decoded(*read(file))
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{place}: {error.what}", fix=error.way_out) from error
        except OSError:
            raise
        except Exception as error:  # a file may hold anything
            raise CheckpointDamaged(f"{place}: its contents make no sense.") from error


def path_of(path: object) -> str:
    """A path as text; InvalidOption for what is none."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidOption(f"The path of a checkpoint is a str or a Path, not {shown(path)}.")
    found = os.fspath(path)
    try:
        named = isinstance(found, str) and b"\0" not in os.fsencode(found)
    except UnicodeError:
        named = False
    if not named:
        raise InvalidOption(f"The path of a checkpoint is text, not {found!r:.80}.")
    return str(found)
