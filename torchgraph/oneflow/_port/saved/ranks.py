"""States of several ranks: one reads or writes, and all have whole tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ...._torch.distributed import layouts
from ...._torch.distributed.held import is_dtensor
from ...._torch.modules import set_versions, versions_of
from ....distributed.ranks import broadcast
from ....distributed.words.placement import placement
from ....distributed.words.process import get_rank, get_world_size, init
from ....errors import CheckpointFileError, InvalidOption, NotSavable
from ....options.checking import shown


def chosen(which: str, rank: int | None, older: int | None) -> int | None:
    """The rank that reads or writes: ``global_dst_rank``, or ``consistent_dst_rank``, its old name.

    Args:
        which: ``"src"`` or ``"dst"``.

    Raises:
        InvalidOption: it is no rank, or there are two.
    """
    if rank is not None and older is not None:
        raise InvalidOption(
            f"global_{which}_rank and consistent_{which}_rank are one option.",
            fix=f"give global_{which}_rank alone.",
        )
    found = older if rank is None else rank
    world = get_world_size()
    if found is not None and (type(found) is not int or not 0 <= found < world):
        raise InvalidOption(
            f"global_{which}_rank={shown(found)}: a rank is a number from 0 to {world - 1}."
        )
    return found


def sent(read: Callable[[], Any], source: int) -> Any:
    """What ``read`` returns on the rank ``source``, on all of them. All have to come here.

    Raises:
        CheckpointFileError: on the others, where it raises on that rank.
    """
    if get_world_size() == 1:
        return read()
    init()
    content: tuple[str | None, Any] = (None, None)
    if get_rank() == source:
        try:
            content = (None, read())
        except Exception as error:  # the others wait for this rank, whatever it is
            broadcast(source, (str(error), None))
            raise
    problem, found = broadcast(source, content)
    if problem is not None:
        raise CheckpointFileError(f"Rank {source} cannot read the checkpoint: {problem}")
    return found


def whole(state: Any, writer: int | None) -> Any:
    """The state with whole tensors in place of DTensors; all ranks that hold parts come here.

    Args:
        writer: the rank whose state it is to be; on others the tensors are given back at once.

    Raises:
        NotSavable: a DTensor, and no rank is named, or one that holds no part of it.
    """
    return _whole(state, writer, {}, "state")


def _whole(value: Any, writer: int | None, done: dict[int, Any], path: str) -> Any:
    if id(value) in done:
        return done[id(value)]
    made: Any
    if isinstance(value, torch.Tensor):
        made = _gathered(value, writer, path) if is_dtensor(value) else value
    elif type(value) in (dict, OrderedDict):
        made = type(value)()
        for key, item in value.items():
            made[key] = _whole(item, writer, done, f"{path}[{key!r:.60}]")
        if versions_of(value) is not None:
            set_versions(made, versions_of(value))
    elif type(value) in (list, tuple):
        items = enumerate(value)
        made = type(value)(_whole(item, writer, done, f"{path}[{n}]") for n, item in items)
    else:
        return value
    done[id(value)] = made
    return made


def _gathered(tensor: Any, writer: int | None, path: str) -> torch.Tensor:
    if writer is None:
        raise NotSavable(
            f"{path} is a tensor of several ranks.",
            fix="save(state, path, global_dst_rank=0) on all of them: rank 0 writes it whole.",
        )
    where = placement.of(tensor)
    if writer not in where.members:
        raise NotSavable(
            f"{path} is a tensor of {where!r}, and rank {writer} is to write it.",
            fix=f"global_dst_rank={where.members[0]}.",
        )
    if get_rank() not in where.members:
        return torch.empty(0)
    found = layouts.waited(tensor.detach().full_tensor())
    return found.cpu() if get_rank() == writer else torch.empty(0)
