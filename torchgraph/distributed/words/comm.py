"""Collectives over plain tensors of all ranks, in place. OneFlow: ``oneflow.comm``.

With one process each gives what it was given. All ranks call them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..errors import PlacementMismatch
from . import process


def all_reduce(tensor: torch.Tensor) -> None:
    """Write the sum over all ranks into ``tensor``."""
    if _together():
        dist.all_reduce(tensor)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """Write the tensors of all ranks into a list that has a tensor for each rank."""
    _check_count(tensor_list)
    if _together():
        dist.all_gather(tensor_list, tensor)
    else:
        tensor_list[0] = tensor.clone()


def all_gather_into_tensor(output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> None:
    """Write the tensors of all ranks, joined along dimension 0, into ``output_tensor``."""
    if _together():
        dist.all_gather_into_tensor(output_tensor, input_tensor)
    else:
        output_tensor.copy_(input_tensor.reshape(output_tensor.shape))


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Write the tensor of rank ``src`` into that of each rank."""
    if _together(src):
        dist.broadcast(tensor, src)


def reduce(tensor: torch.Tensor, dst: int) -> None:
    """Write the sum over all ranks into the tensor of rank ``dst``; other ranks keep theirs."""
    if _together(dst):
        kept = tensor.clone()
        dist.reduce(tensor, dst)
        if dist.get_rank() != dst:
            tensor.copy_(kept)


def scatter(
    tensor: torch.Tensor, scatter_list: Sequence[torch.Tensor] | None = None, src: int = 0
) -> None:
    """Write one tensor of the list of rank ``src`` into ``tensor`` of each rank."""
    if process.get_rank() == src:
        _check_count(scatter_list)
    if _together(src):
        given = list(scatter_list or ()) if dist.get_rank() == src else None
        dist.scatter(tensor, given, src)
    elif scatter_list:
        tensor.copy_(scatter_list[0])


def gather(
    tensor: torch.Tensor, gather_list: list[torch.Tensor] | None = None, dst: int = 0
) -> None:
    """Write the tensors of all ranks into the list of rank ``dst``."""
    if process.get_rank() == dst:
        _check_count(gather_list)
    if _together(dst):
        dist.gather(tensor, gather_list if dist.get_rank() == dst else None, dst)
    elif gather_list:
        gather_list[0] = tensor.clone()


def reduce_scatter(output: torch.Tensor, input_list: Sequence[torch.Tensor]) -> None:
    """Write the sum over all ranks of the list element of this rank into ``output``."""
    _check_count(input_list)
    if _together():
        summed = torch.stack(list(input_list))
        dist.all_reduce(summed)
        output.copy_(summed[dist.get_rank()])
    else:
        output.copy_(input_list[0])


def barrier() -> None:
    """Wait for all ranks."""
    if _together():
        dist.barrier()


def _together(rank: int = 0) -> bool:
    """True where there is more than one rank."""
    world = process.get_world_size()
    if not 0 <= rank < world:
        raise PlacementMismatch(f"rank {rank} is not there, with {world} in all.")
    if world > 1 and not dist.is_initialized():
        raise PlacementMismatch(
            "There is no process group.", fix="call torchgraph.env.init() first."
        )
    return world > 1


def _check_count(tensors: Sequence[torch.Tensor] | None) -> None:
    world, count = process.get_world_size(), len(tensors or ())
    if count != world:
        raise PlacementMismatch(f"A list of {count} for {world} ranks: give a tensor for each.")
