"""Parameters that torch's `fully_shard` has sharded before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._torch.distributed import fsdp
from ...errors import NotSupported
from ..parallel import DataParallel, Zero
from .peers import Peers, Precision
from .pieces import Pieces
from .unit import CutParameter


def adopted(modules: Sequence[Any]) -> tuple[Zero, DataParallel, list[tuple[Any, ...]]] | None:
    """The settings of `fully_shard`, and the parameters of each wrapped module; None for none.

    A wrapped module is described by its sharded parameters, their peers and their precision.

    Args:
        modules: the modules that `fully_shard` was called with.

    Raises:
        NotSupported: `fully_shard` was asked for what `Shards` cannot do.
    """
    fsdp.reshard(modules)
    groups = fsdp.groups_of(modules)
    if not groups:
        return None
    why = next(filter(None, (group.why_not() for group in groups)), "")
    if why or len({group.groups for group in groups}) > 1:
        raise NotSupported(
            f"A module is wrapped by fully_shard {why or 'over several meshes'}.",
            fix="wrap all modules over one mesh and without that, or use config.enable_zero.",
        )
    group, _ = groups[0].groups
    parallel = DataParallel(group.group_name, group.size(), (0,), False)
    stage = 3 if any(group.frees for group in groups) else 2
    return Zero(stage, 0), parallel, [_unit(group) for group in groups]


def _unit(held: fsdp.Together) -> tuple[list[CutParameter], Peers, Precision]:
    group, alike = held.groups
    ranks = group.size()
    parts = [
        CutParameter(one.parameter, Pieces(one.shape, one.dim, ranks), one.inner)
        for one in held.parameters
    ]
    many = ranks if alike is None else ranks * alike.size()
    name = "" if alike is None else alike.group_name
    rank, divisor = group.rank(), held.divisor or many
    peers = Peers(group.group_name, ranks, rank, True, divisor, hooked=False, alike=name)
    computes, reduces = held.precision
    return parts, peers, Precision(computes, reduces or computes)
