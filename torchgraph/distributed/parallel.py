"""Settings of data parallelism and ZeRO as values, which are part of the key of a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from ..errors import InvalidOption
from .errors import NoProcessGroup


@dataclass(frozen=True)
class DataParallel:
    """The process group that averages gradients; see `GraphConfig.enable_data_parallel`."""

    group: str
    """The name of the process group."""
    ranks: int
    """How many it has."""
    bucket_bytes: tuple[int, ...]
    """At most so many travel together: in the first bucket, in each of the others."""
    broadcast_buffers: bool
    mesh: Any = field(default=None, compare=False, repr=False)
    """The mesh that was given, if one was."""


@dataclass(frozen=True)
class Zero:
    """The states that are sharded over ranks; see `GraphConfig.enable_zero`."""

    stage: int
    shard_min_size: int


def group_of(mesh: Any) -> Any:
    """The process group of a mesh of one dimension; None, and True: of all ranks.

    Raises:
        NoProcessGroup: `torch.distributed` was not initialized.
        InvalidOption: the mesh has several dimensions, or is none; this rank is not in it.
    """
    known = mesh is None or mesh is True or isinstance(mesh, dist.device_mesh.DeviceMesh)
    if not known:
        raise InvalidOption(
            f"enable_data_parallel takes a DeviceMesh or None, not a {type(mesh).__name__}."
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise NoProcessGroup("enable_data_parallel: torch.distributed is not initialized.")
    if mesh is None or mesh is True:
        return dist.group.WORLD
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ()
        raise InvalidOption(
            f"enable_data_parallel takes a mesh of one dimension, not of {mesh.ndim}.",
            fix=f'choose one: mesh["{names[0]}"]' if names else 'name them: mesh_dim_names=("dp",)',
        )
    if mesh.get_coordinate() is None:
        raise InvalidOption(
            f"enable_data_parallel: rank {dist.get_rank()} is not in {mesh}.",
            fix="make a mesh of all ranks that call the Graph.",
        )
    return mesh.get_group()


def has_ranks() -> bool:
    """True where this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
