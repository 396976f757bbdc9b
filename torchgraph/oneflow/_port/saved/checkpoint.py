"""A state in OneFlow's own format, so that OneFlow loads it: a folder for each tensor, a pickle."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from typing import Any

import torch

from ....artifact.files import refused, replaced
from ....artifact.saving import path_of
from ....artifact.tensors import memory_of, problem_of
from ....errors import NotSavable
from .dtypes import WRITTEN
from .forms import PICKLED, STATE, forget
from .meta import written
from .pickles import pickled
from .variables import META, OUT

_OURS = re.compile(r"tensor_([0-9a-f]{16})_\d+", re.ASCII)


def save_checkpoint(state: Any, directory: str | os.PathLike[str]) -> None:
    """Save a state as OneFlow 0.6 to 0.9 does, for ``oneflow.load(directory)`` to read, bit by bit.

    A state is dicts, lists and tuples of tensors of any shape and plain values: None, bool, int,
    float, str, bytes, `torch.Size` and OneFlow's dtypes. Tensors of float16, float32, float64,
    int8, int32, int64, uint8 and bool are saved, wherever they lie; OneFlow has them on the CPU.
    A `torch.nn.Parameter` becomes one of OneFlow's. A tensor
    that lies in several places is stored once.

    The directory, and those above it, are made where they are missing. A checkpoint that is there
    is replaced at the end, at once: a kill leaves the old one or the new one. One process at a time
    saves to a directory.

    Raises:
        NotSavable: names what OneFlow could not load: bfloat16 (it writes it, and fails to read
            it), complex numbers, objects. Nothing is written.
        CheckpointFileError: no room, no right, or a file is at ``directory``.
    """
    place = path_of(directory)
    token = secrets.token_hex(8)
    content, tensors = pickled(state, f"tensor_{token}_")
    for path, tensor in tensors.values():
        _check(path, tensor)
    try:
        os.makedirs(place, exist_ok=True)
        for name, (_, tensor) in tensors.items():
            _write(tensor, os.path.join(place, name))
    except OSError as error:
        raise refused("written", place, error) from error
    with replaced(os.path.join(place, PICKLED)) as file:
        file.write(content)
    forget(place, STATE)
    for name in os.listdir(place):
        found = _OURS.fullmatch(name)
        if found and found[1] != token:
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)


def _check(path: str, tensor: torch.Tensor) -> None:
    problem = problem_of(tensor)
    if problem:
        raise NotSavable(f"{path} {problem[0]}", fix=problem[1])
    if tensor.dtype not in WRITTEN:
        raise NotSavable(
            f"{path} is of {tensor.dtype}, which OneFlow 0.9 cannot load.",
            fix="save float() of it, or use torchgraph.save.",
        )


def _write(tensor: torch.Tensor, folder: str) -> None:
    os.mkdir(folder)
    ordered = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    with replaced(os.path.join(folder, OUT)) as file:
        file.write(memory_of(ordered))
    with replaced(os.path.join(folder, META)) as file:
        file.write(written(tensor.shape, WRITTEN[tensor.dtype]).encode())
