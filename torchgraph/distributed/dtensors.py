"""DTensors: flags reduced over the ranks that hold their shards, and shards in a common layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._torch.distributed import collectives
from .._torch.distributed.held import layout_of, local


def most(flag: torch.Tensor, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """The largest ``flag`` of all ranks over which any of ``tensors`` is sharded.

    Args:
        flag: 0-dim; not 0 where this rank's shards have something that the others must know.
    """
    groups: dict[str, Any] = {}
    for layout in filter(None, map(layout_of, tensors)):
        for dim, placement in enumerate(layout.placements):
            if not placement.is_replicate():
                group = layout.mesh.get_group(dim)
                groups[group.group_name] = group
    for name in sorted(groups):
        flag = collectives.reduced(flag, "max", name)
    return flag


def parts_as(tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The local shards of ``tensors``, each redistributed to the layout of its partner in ``like``.

    A tensor that is no DTensor stays what it is: a counter, which all ranks have.
    """
    pairs = zip(tensors, like, strict=True)
    return [local(tensor if one is tensor else _moved(tensor, one)) for tensor, one in pairs]


def _moved(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    own, wanted = layout_of(tensor), layout_of(like)
    if own is None or wanted is None or own.placements == wanted.placements:
        return tensor
    held: Any = tensor
    moved: torch.Tensor = held.redistribute(wanted.mesh, wanted.placements)
    return moved
