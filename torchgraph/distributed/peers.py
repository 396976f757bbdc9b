"""Ranks that hand each other tensors, by their positions in a process group."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .._torch.distributed import collectives

_made: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]]
_made = weakref.WeakKeyDictionary()
"""By the group of all ranks, with which they end."""

Parcel = dist.P2POp
"""Memory that is to be sent or received."""


def is_joined() -> bool:
    """True where this process has a rank."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """How many ranks there are; 1 without a process group."""
    return dist.get_world_size() if is_joined() else 1


def here() -> int:
    """The rank of this process; 0 without a process group."""
    return dist.get_rank() if is_joined() else 0


def members(name: str) -> list[int]:
    """The ranks of the process group of that name, sorted."""
    return sorted(dist.get_process_group_ranks(collectives.group_of(name)))


class Peers:
    """The ranks of one pipeline.

    Args:
        many: the ranks of each pipeline; all ranks of the world say the same.
        number: the one that this rank is in.
    """

    def __init__(self, many: Sequence[Sequence[int]], number: int) -> None:
        world = dist.group.WORLD
        assert world is not None
        known = _made.setdefault(world, {})
        keys = [tuple(sorted(ranks)) for ranks in many]
        for key in keys:
            if len(key) == world_size():
                known[key] = world
            elif key not in known:
                known[key] = dist.new_group(list(key))
        self.group = known[keys[number]]
        self.position = dist.get_rank(self.group)
        """This rank's."""

    def gathered(self, numbers: torch.Tensor) -> list[torch.Tensor]:
        """Those of all ranks, in their order; as many on each."""
        found = [torch.empty_like(numbers) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(found, numbers, self.group)
        return found

    def send(self, memory: torch.Tensor, position: int) -> Parcel:
        """To be sent to the rank at that position."""
        return self._parcel(dist.isend, memory, position)

    def receive(self, memory: torch.Tensor, position: int) -> Parcel:
        """To be filled by the rank at that position."""
        return self._parcel(dist.irecv, memory, position)

    def _parcel(self, op: object, memory: torch.Tensor, position: int) -> Parcel:
        peer = dist.get_global_rank(self.group, position)
        return Parcel(op, memory, peer, self.group)  # type: ignore[arg-type]  # isend or irecv

    def exchange(self, parcels: Sequence[Parcel]) -> None:
        """Send and receive all of them, and wait for that."""
        for work in dist.batch_isend_irecv(list(parcels)) if parcels else ():
            work.wait()
