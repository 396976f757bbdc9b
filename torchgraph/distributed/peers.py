"""Point-to-point communication between ranks, by their positions in a process group."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .._torch.distributed import collectives

_made: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]]
_made = weakref.WeakKeyDictionary()
"""Default process group -> groups by their ranks; dropped together with it."""

P2POp = dist.P2POp
"""A tensor to send or to receive, before it is posted."""


def is_joined() -> bool:
    """True where the default process group is initialized."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """The number of ranks; 1 without a process group."""
    return dist.get_world_size() if is_joined() else 1


def here() -> int:
    """The rank of this process; 0 without a process group."""
    return dist.get_rank() if is_joined() else 0


def members(name: str) -> list[int]:
    """The ranks of the process group of that name, sorted."""
    return sorted(dist.get_process_group_ranks(collectives.group_of(name)))


class Peers:
    """The process group of one pipeline.

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
        """The index of this rank in the group."""

    def gathered(self, numbers: torch.Tensor) -> list[torch.Tensor]:
        """``numbers`` of all ranks, in the order of ranks; the shape is the same on each rank."""
        found = [torch.empty_like(numbers) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(found, numbers, self.group)
        return found

    def send(self, memory: torch.Tensor, position: int) -> P2POp:
        """Prepare sending ``memory`` to the rank at ``position``."""
        return self._p2p_op(dist.isend, memory, position)

    def receive(self, memory: torch.Tensor, position: int) -> P2POp:
        """Prepare receiving into ``memory`` from the rank at ``position``."""
        return self._p2p_op(dist.irecv, memory, position)

    def _p2p_op(self, op: object, memory: torch.Tensor, position: int) -> P2POp:
        peer = dist.get_global_rank(self.group, position)
        return P2POp(op, memory, peer, self.group)  # type: ignore[arg-type]  # isend or irecv

    def exchange(self, ops: Sequence[P2POp]) -> None:
        """Post all sends and receives at once, and wait until they are done."""
        for work in dist.batch_isend_irecv(list(ops)) if ops else ():
            work.wait()
