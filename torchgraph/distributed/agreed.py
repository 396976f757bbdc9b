"""What every rank that holds a part of a DTensor has to know of all parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .._torch.distributed import collectives
from .._torch.distributed.held import layout_of


def most(flag: torch.Tensor, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """The largest ``flag`` of all ranks over which any of ``tensors`` lies in parts.

    Args:
        flag: 0-dim; not 0 where this rank's parts have something that the others must know.
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
