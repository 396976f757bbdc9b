"""DTensors: made, and read as a whole. torch.distributed.tensor is loaded when they are needed."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from .collectives import group_of
from .held import is_dtensor, local
from .layouts import dtensor


def mesh_of(group: str, device_type: str) -> Any:
    """A mesh of one dimension over a process group."""
    return _mesh_of(group_of(group), device_type)


@functools.cache
def _mesh_of(group: Any, device_type: str) -> Any:
    """A mesh of the group itself: after destruction another group may have its name."""
    return dist.device_mesh.DeviceMesh.from_group(group, device_type)


def joint(mesh: Any, other: Any) -> Any:
    """The mesh that two meshes without a dimension in common are parts of; None if they are not."""
    try:
        root = mesh._get_root_mesh()
        names = {*mesh.mesh_dim_names, *other.mesh_dim_names}
        if other._get_root_mesh() is not root or len(names) != mesh.ndim + other.ndim:
            return None
        return root[tuple(name for name in root.mesh_dim_names if name in names)]
    except (AttributeError, KeyError, TypeError):  # without names, or none of this torch
        return None


def cut_dims(tensor: torch.Tensor) -> set[int]:
    """The dimensions along which a DTensor lies in parts already."""
    held: Any = tensor
    kinds = held.placements if is_dtensor(tensor) else ()
    return {kind.dim for kind in kinds if isinstance(kind, dtensor().Shard)}


def distributed(tensor: torch.Tensor, mesh: Any, dim: int | None, other: Any) -> torch.Tensor:
    """The first rank's values as a DTensor: cut along ``dim``, or whole on each rank. Collective.

    Of a parameter a parameter.

    Args:
        other: the mesh of a DTensor, over which it stays as it is; over which a plain tensor is
            equal. The result lies over both. None: there is no such mesh.
    """
    kind = dtensor().Replicate() if dim is None else dtensor().Shard(dim)
    made: Any = dtensor().distribute_tensor(local(tensor.detach()), mesh, [kind])
    if other is not None:
        held: Any = tensor
        same = [dtensor().Replicate()] * other.ndim
        kinds = dict(zip(other.mesh_dim_names, getattr(held, "placements", same), strict=True))
        kinds[mesh.mesh_dim_names[0]] = kind
        both = joint(mesh, other)
        placements = [kinds[name] for name in both.mesh_dim_names]
        whole = {"shape": held.shape, "stride": held.stride()}
        made = dtensor().DTensor.from_local(local(made), both, placements, **whole)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    found: torch.Tensor = made
    return found


def whole_with_history(tensor: torch.Tensor, mesh: Any, inner: Any) -> torch.Tensor:
    """A DTensor replicated over ``mesh``, as a local tensor with autograd history.

    Its gradient is the mean over the ranks of ``mesh``.

    Args:
        inner: how it lies over another mesh besides, as `layout_of` gives it; None: not at all.
    """
    held: Any = tensor
    dims = held.device_mesh.ndim
    place = 0 if dims == 1 else held.device_mesh.mesh_dim_names.index(mesh.mesh_dim_names[0])
    whole, gradients = list(held.placements), list(held.placements)
    whole[place], gradients[place] = dtensor().Replicate(), dtensor().Partial()
    found: Any = held.redistribute(placements=whole).to_local(grad_placements=gradients)
    if found.requires_grad:
        found.register_hook(lambda gradient: gradient * (1.0 / mesh.size()))
    if inner is not None:
        given = {"shape": inner.tensor_meta.shape, "stride": inner.tensor_meta.stride}
        found = dtensor().DTensor.from_local(found, inner.mesh, inner.placements, **given)
    made: torch.Tensor = found
    return made


def laid_out(gradient: torch.Tensor, layout: Any) -> torch.Tensor:
    """The local part of a gradient redistributed as ``layout``; None: it is no DTensor."""
    if layout is not None and is_dtensor(gradient):
        held: Any = gradient
        gradient = held.redistribute(placements=layout.placements)
    return local(gradient)


def cut_like(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that all ranks have, placed as ``like``; nothing is sent."""
    held: Any = like
    here = whole.detach().to(held.device)
    where = held.device_mesh, held.placements
    made: torch.Tensor = dtensor().distribute_tensor(here, *where, src_data_rank=None)
    return made


def emptied(tensor: torch.Tensor) -> None:
    """Free the tensor's memory; ops on it fail from then on."""
    if is_dtensor(tensor):
        held: Any = tensor
        held._local_tensor = held._local_tensor.new_empty(0)
    else:
        tensor.data = tensor.data.new_empty(0)
