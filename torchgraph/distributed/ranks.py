"""The ranks of the default process group: which this is, what each says, and ranks played by one.

A rank that is played has a process group in which nothing is communicated: what torch's own tests
record programs with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .._torch.distributed.collectives import group_of
from .._torch.distributed.simulated import cut_here, fake_store
from ..errors import InvalidOption

Said = TypeVar("Said")


def rank() -> int:
    """Which rank of the default process group this process is."""
    return dist.get_rank()


def told(value: Said) -> list[Said]:
    """What each rank says, in order; all have to come here. What they say is pickled."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def told_by(source: int, value: Said) -> Said:
    """What the rank ``source`` says, on all of them; all have to come here. It is pickled.

    Args:
        value: of no account on the others.
    """
    found: list[Any] = [value]
    dist.broadcast_object_list(found, src=source)
    said: Said = found[0]
    return said


def ranks_of(group: str) -> tuple[int, ...]:
    """The ranks of the process group of that name, as functional collectives name it."""
    return tuple(dist.get_process_group_ranks(group_of(group)))


@contextmanager
def played(rank: int, world: int, wholes: list[torch.Tensor]) -> Iterator[None]:
    """In the block this process is that rank of ``world`` ranks, the others of which are not there.

    Args:
        wholes: takes, in their order, the tensors that are cut into DTensors, of which the first
            rank would send its own.

    Raises:
        InvalidOption: there is a default process group already.
    """
    if dist.is_initialized():
        raise InvalidOption(
            "Ranks of one process need a process group of their own, and torch.distributed has one "
            "already.",
            fix="call torch.distributed.destroy_process_group() before it.",
        )
    dist.init_process_group("fake", rank=rank, world_size=world, store=fake_store())
    try:
        with cut_here(wholes):
            yield
    finally:
        dist.destroy_process_group()
