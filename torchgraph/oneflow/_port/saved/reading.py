"""OneFlow's checkpoints as states: directories of every version, and the single file of 0.9.1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from ....artifact.files import opened, refused
from ....categories import GraphWarning
from ....errors import CheckpointDamaged, CheckpointNotFound
from ....lines import warn
from .forms import DONE, GRAPH, PICKLED, of_directory
from .pickles import Values, data_of, read
from .variables import OUT, Folder


def form_of(path: str) -> str:
    """The file that says what the directory at ``path`` is; see `forms`."""
    with _errors(path), closing(Folder(path)) as folder:
        return of_directory(folder, path)


def directory_at(path: str) -> Any:
    """The state in a directory that OneFlow wrote, on the CPU.

    Raises:
        CheckpointDamaged: it is not whole, or not what OneFlow writes.
        CheckpointNotFound; CheckpointFileError: it is not there, or cannot be read.
    """
    with _errors(path), closing(Folder(path)) as folder:
        form = of_directory(folder, path)
        if form != PICKLED:
            return _variables(folder, path, form)
        with folder.opened(PICKLED) as file:
            content = file.read()
        return data_of(read(content), Values(folder.tensor, len(content)))


def file_at(path: str) -> Any:
    """The state in a single file that OneFlow 0.9.1 or later wrote, on the CPU.

    Raises: as `directory_at`.
    """
    with opened(path) as file:
        content = file.read()
    with _errors(path):
        return data_of(read(content), Values(None, len(content)))


def _variables(folder: Folder, path: str, form: str) -> dict[str, torch.Tensor]:
    """By the names of their folders."""
    found = {}
    for name in folder.names():
        if name == form:
            continue
        if folder.has(name, OUT):
            found[name] = folder.tensor(name)
        elif form == DONE:
            warn(f"{os.path.join(path, name)} holds no variable.", GraphWarning)
    if form == GRAPH and not found:
        raise CheckpointDamaged(f"there are no variables beside {GRAPH}.")
    return found


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Name the path in what is raised."""
    try:
        yield
    except CheckpointDamaged as error:
        what = error.what if error.what.startswith(path) else f"{path}: {error.what}"
        raise CheckpointDamaged(what, fix=error.way_out) from error
    except FileNotFoundError as error:
        raise refused("read", path, error, CheckpointNotFound) from error
    except OSError as error:
        raise refused("read", path, error) from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise CheckpointDamaged(f"{path}: its contents make no sense.") from error
