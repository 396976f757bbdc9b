"""``oneflow.save``."""

from __future__ import annotations

import os
from typing import Any

from ....artifact.files import opened, refused
from ....artifact.saving import path_of
from ....blocks.holder import ModuleHolder
from ....distributed.words.process import get_rank
from ....errors import InvalidOption
from ....options.checking import shown
from ....saved import LoadedGraph, save as save_own
from .checkpoint import save_checkpoint
from .forms import PICKLED, START, STATE, forget, may_be_replaced
from .ranks import chosen, whole


def save(
    obj: Any,
    path: str | os.PathLike[str],
    global_dst_rank: int | None = None,
    save_as_external_data: bool = False,
    *,
    consistent_dst_rank: int | None = None,
) -> None:
    """Save a state or a Graph in the directory ``path``. OneFlow: ``oneflow.save``.

    A state (dicts, lists and tuples of tensors and plain values) becomes the directory ``path``, as
    in OneFlow 0.9, with the one file ``state.safetensors`` in it, which `torchgraph.save` writes:
    plain values come back as they are, and a kill leaves the old file or the new one. The directory
    may be there, and those above it are made. A ``pickled_data`` of OneFlow's in it is removed: it
    is the checkpoint before this one. Where a file is at ``path`` that is empty or a checkpoint, as
    OneFlow 1.0 writes them, that file is replaced. OneFlow does not read either; `save_checkpoint`
    writes what OneFlow reads. A Graph becomes a directory as `torchgraph.save` makes it.

    Args:
        global_dst_rank: where there are several ranks, the one that writes; all call it, and
            DTensors are gathered, one after the other. Without it each rank that calls it writes.
        save_as_external_data: True writes OneFlow's own format, a folder for each tensor.
        consistent_dst_rank: the older name of ``global_dst_rank``.

    Raises:
        NotSavable: names what is neither a tensor nor a plain value. Nothing is written.
        CheckpointFileError: no room, no right, or another file is at ``path``.
        InvalidOption: no path, or no rank.
    """
    place = path_of(path)
    if type(save_as_external_data) is not bool:
        raise InvalidOption(
            f"save_as_external_data is True or False, not {shown(save_as_external_data)}."
        )
    writer = chosen("dst", global_dst_rank, consistent_dst_rank)
    is_graph = isinstance(obj, (ModuleHolder, LoadedGraph))
    if is_graph and save_as_external_data:
        raise InvalidOption(
            "A Graph is saved in torchgraph's own format.",
            fix="save_as_external_data=True with graph.state_dict().",
        )
    state = obj if is_graph else whole(obj, writer)
    if writer is not None and get_rank() != writer:
        return
    if is_graph:
        save_own(state, place)
    elif save_as_external_data:
        save_checkpoint(state, place)
    else:
        _save_state(state, place)


def _save_state(state: Any, place: str) -> None:
    if _is_to_be_a_file(place):
        save_own(state, place)
        return
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as error:
        raise refused("written", place, error) from error
    save_own(state, os.path.join(place, STATE))
    forget(place, PICKLED)


def _is_to_be_a_file(place: str) -> bool:
    """Whether a file is there that may be replaced, rather than a directory or nothing."""
    if not os.path.isfile(place):
        return False
    with opened(place) as file:
        return may_be_replaced(file.read(START))
