"""``oneflow.load``."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from ....artifact.files import opened
from ....artifact.saving import path_of
from ....errors import InvalidOption
from ....saved import load as load_own
from . import reading
from .forms import MANIFEST, START, STATE, of_file
from .places import moved, target_of
from .ranks import chosen, sent


def load(
    path: str | os.PathLike[str],
    global_src_rank: int | None = None,
    map_location: Any = None,
    *,
    consistent_src_rank: int | None = None,
) -> Any:
    """What OneFlow or torchgraph saved at ``path``. OneFlow: ``oneflow.load``.

    Read are the directories of OneFlow 0.5 to 1.0 (with ``pickled_data``, with ``snapshot_done``,
    and those of a graph, ``model.mlir`` left aside), the single files of 0.9.1 and later, and what
    `save` wrote (a Graph comes back as a `torchgraph.LoadedGraph`). OneFlow's pickles are read as
    data: nothing that one names is imported or run.

    Tensors are plain ones on the CPU, without gradient, whatever device they were on. Parameters
    of OneFlow's come back as such tensors, too. ``module.load_state_dict`` of a torch module takes
    the state of OneFlow's module of that name: names, shapes and layouts are the same.

    Args:
        global_src_rank: where there are several ranks, the one that reads; all ranks call it, and
            get whole tensors. With one process, 0.
        map_location: a device, its name, or a placement: of one process.
        consistent_src_rank: the older name of ``global_src_rank``.

    Raises:
        CheckpointNotFound; CheckpointFileError: nothing is there, or it cannot be read.
        CheckpointDamaged: it is cut, or holds more than tensors and plain values; says what.
        InvalidOption: no path, rank or device; a file of `torch.save`.
    """
    target = target_of(map_location)
    source = chosen("src", global_src_rank, consistent_src_rank)
    read = partial(_found, path_of(path))
    return moved(read() if source is None else sent(read, source), target)


def _found(place: str) -> Any:
    if os.path.isdir(place):
        form = reading.form_of(place)
        if form == STATE:
            return load_own(os.path.join(place, STATE))
        return load_own(place) if form == MANIFEST else reading.directory_at(place)
    with opened(place) as file:
        kind = of_file(file.read(START))
    if kind == "oneflow":
        return reading.file_at(place)
    if kind == "torch":
        raise InvalidOption(
            f"{place} is a file of torch.save: a pickle, and no such file is read here.",
            fix="torch.load(path, weights_only=True) gives the tensors.",
        )
    return load_own(place)
