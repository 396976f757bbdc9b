"""The ranks of the default process group: collectives of Python objects, and simulated ranks.

A simulated rank has a process group with torch's "fake" backend, in which nothing is communicated.
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

T = TypeVar("T")


def rank() -> int:
    """The rank of this process in the default process group."""
    return dist.get_rank()


def all_gather(value: T) -> list[T]:
    """``value`` of each rank, in the order of ranks. Pickles it; every rank has to call."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def broadcast(source: int, value: T) -> T:
    """``value`` of the rank ``source``, on every rank. Pickles it; every rank has to call.

    Args:
        value: read on ``source`` alone.
    """
    found: list[Any] = [value]
    dist.broadcast_object_list(found, src=source)
    received: T = found[0]
    return received


def ranks_of(group: str) -> tuple[int, ...]:
    """The ranks of the process group of that name, as functional collectives name it."""
    return tuple(dist.get_process_group_ranks(group_of(group)))


@contextmanager
def simulated_rank(rank: int, world: int, wholes: list[torch.Tensor]) -> Iterator[None]:
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
