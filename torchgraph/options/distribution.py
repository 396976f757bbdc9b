"""How the ranks of torch.distributed share a step."""

from __future__ import annotations

from typing import Annotated, Any

import torch.distributed as dist

from ..distributed.errors import NoProcessGroup
from ..errors import InvalidOption
from .checking import OWN_CHECK, AtLeast, shown
from .options import DataParallel
from .verbs import Verbs

_MB = 1024 * 1024
_FIRST = _MB
"""Bytes of the first bucket, as in DDP: it starts soon after backward does."""


class DistributionVerbs(Verbs):
    """See `GraphConfig`."""

    def enable_data_parallel(
        self,
        mesh: Annotated[Any, OWN_CHECK] = None,
        *,
        bucket_mb: Annotated[float, AtLeast(0)] = 25.0,
        broadcast_buffers: bool = True,
    ) -> None:
        """Each rank trains on its own shard of the batch; gradients are averaged over the ranks.

        The numbers are those of `torch.nn.parallel.DistributedDataParallel`, with plain modules.
        Before the first call parameters and buffers become those of the mesh's first rank. The
        averages are taken once a call, after gradient accumulation and before unscaling and
        clipping; in a `tg.step`, at the end of each ``backward()`` that is not inside of
        `tg.no_sync`. All ranks call the Graph equally often.

        Args:
            mesh: a `DeviceMesh` of one dimension, such as ``mesh["dp"]``; None: all ranks; False:
                no more.
            bucket_mb: gradients travel in buckets of so many MiB, the first one of at most 1.
            broadcast_buffers: before each step of training, buffers become the first rank's.

        Raises:
            NoProcessGroup: `torch.distributed` was not initialized.
            InvalidOption: the mesh has several dimensions, or is none.
        """
        if mesh is False:
            self._set(data_parallel=None)
            return
        group = _group_of(mesh)
        limits = (min(_FIRST, int(bucket_mb * _MB)), int(bucket_mb * _MB))
        chosen = DataParallel(group.group_name, group.size(), limits, broadcast_buffers)
        self._set(data_parallel=chosen)


def _group_of(mesh: Any) -> Any:
    """The process group of a mesh of one dimension."""
    known = mesh is None or mesh is True or isinstance(mesh, dist.device_mesh.DeviceMesh)
    if not known:
        raise InvalidOption(f"enable_data_parallel takes a DeviceMesh or None, not {shown(mesh)}.")
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
    return mesh.get_group()
