"""Parameters that torch's `fully_shard` has cut: they lie in parts already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._torch.distributed import fsdp
from ..._torch.distributed.held import layout_of
from ...errors import NotSupported
from ..parallel import DataParallel, Zero
from .pieces import Pieces
from .unit import CutParameter


def adopted(modules: Sequence[Any]) -> tuple[Zero, DataParallel, list[list[CutParameter]]] | None:
    """What `fully_shard` was asked for, and the parts that each module gathers; None: nothing.

    Args:
        modules: those that were wrapped.

    Raises:
        NotSupported: it was asked for more than that.
    """
    fsdp.reshard(modules)
    groups = fsdp.groups_of(modules)
    if not groups:
        return None
    meshes = {group.mesh for group in groups}
    why = next(filter(None, (group.why_not() for group in groups)), "")
    if why or len(meshes) > 1:
        raise NotSupported(
            f"A module is wrapped by fully_shard {why or 'over several meshes'}.",
            fix="wrap it without, over one mesh of one dimension, or use config.enable_zero.",
        )
    (mesh,) = meshes
    parallel = DataParallel(mesh.get_group().group_name, mesh.size(), (0,), False, mesh)
    stage = 3 if any(group.frees for group in groups) else 2
    lists = [[_part(parameter) for parameter in group.parameters] for group in groups]
    return Zero(stage, 0), parallel, lists


def _part(parameter: Any) -> CutParameter:
    layout = layout_of(parameter)
    (placement,) = layout.placements
    pieces = Pieces(parameter.shape, placement.dim, layout.mesh.size())
    return CutParameter(parameter, pieces)
