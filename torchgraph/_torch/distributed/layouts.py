"""DTensor, loaded on first use, with its private parts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

_FUNCTIONAL = "torch.distributed._functional_collectives"


def dtensor() -> Any:
    """The module of DTensor; importing torchgraph does not load it."""
    return importlib.import_module("torch.distributed.tensor")


def waited(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or the result of the collective that it is pending for."""
    module: Any = sys.modules.get(_FUNCTIONAL)
    if module is not None and isinstance(tensor, module.AsyncCollectiveTensor):
        found: torch.Tensor = tensor.wait()
        return found
    return tensor


def mesh_of(device: str, ranks: Any) -> DeviceMesh:
    """A mesh of these ranks, which all ranks of the default process group make at the same time."""
    return DeviceMesh(device, ranks)


def coordinate(mesh: DeviceMesh) -> Sequence[int] | None:
    """The coordinate of this rank in a mesh; None where it is not in it."""
    found: Sequence[int] | None = mesh.get_coordinate()
    return found


def gathered(value: object, group: Any, count: int) -> list[Any]:
    """The objects that the ranks of a group give, in order."""
    found: list[Any] = [None] * count
    dist.all_gather_object(found, value, group=group)
    return found


def broadcast_along(tensor: torch.Tensor, mesh: DeviceMesh, dim: int) -> None:
    """Write into ``tensor`` what the first rank along a dimension of a mesh has."""
    dist.broadcast(tensor, group=mesh.get_group(dim), group_src=0)


def sent(whole: torch.Tensor | None, like: torch.Tensor, source: int, device: str) -> torch.Tensor:
    """The tensor of rank ``source``, broadcast over the default process group."""
    if whole is None:
        whole = torch.empty(like.shape, dtype=like.dtype, device=device)
    whole = whole.detach().contiguous().to(device)
    dist.broadcast(whole, source)
    return whole


MapParameters = Callable[[str, torch.Tensor], torch.Tensor]


def map_tensors(module: torch.nn.Module, change: MapParameters) -> None:
    """Put what ``change`` makes of each parameter and buffer in its place; tied ones stay tied."""
    done: dict[int, torch.Tensor] = {}
    for prefix, owner in module.named_modules():
        for held in (owner._parameters, owner._buffers):
            for name, tensor in list(held.items()):
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    made = change(f"{prefix}.{name}".lstrip("."), tensor)
                    if isinstance(tensor, torch.nn.Parameter):
                        made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
                    done[id(tensor)] = made
                held[name] = done[id(tensor)]
