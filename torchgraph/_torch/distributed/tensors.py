"""DTensors: made, and read as a whole. torch.distributed.tensor is loaded when they are needed."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from .collectives import group_of
from .layouts import dtensor


def mesh_of(group: str, device_type: str) -> Any:
    """A mesh of one dimension over a process group."""
    return _mesh_of(group_of(group), device_type)


@functools.cache
def _mesh_of(group: Any, device_type: str) -> Any:
    """By the group itself: another one may have its name after it was destroyed."""
    return dist.device_mesh.DeviceMesh.from_group(group, device_type)


def distributed(tensor: torch.Tensor, mesh: Any, dim: int | None) -> torch.Tensor:
    """The first rank's values as a DTensor: cut along ``dim``, or whole on each rank. Collective.

    Of a parameter a parameter.
    """
    kind = dtensor().Replicate() if dim is None else dtensor().Shard(dim)
    made: torch.Tensor = dtensor().distribute_tensor(tensor.detach(), mesh, [kind])
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made


def whole_with_history(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """The whole of a DTensor, for autograd: its gradient is the mean over ``ranks``."""
    held: Any = tensor
    replicated = held.redistribute(placements=[dtensor().Replicate()])
    whole: torch.Tensor = replicated.to_local(grad_placements=[dtensor().Partial()])
    if whole.requires_grad:
        whole.register_hook(lambda gradient: gradient * (1.0 / ranks))
    return whole
