"""The sharded parameters of a Graph, by its options or by `fully_shard`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..._torch.distributed import fsdp
from ..parallel import DataParallel, Zero
from .adopted import adopted
from .shards import Shards


def shards_of(
    modules: Sequence[nn.Module], zero: Zero | None, parallel: DataParallel | None
) -> Shards | None:
    """The `Shards` for a step of ``modules``; None where no parameter is to be sharded.

    Raises:
        NotSupported: `fully_shard` was asked for what `Shards` cannot do.
    """
    wrapped = fsdp.wrapped(modules)
    found = adopted(wrapped)
    if found is not None:
        its_zero, its_parallel, units = found
        shards = Shards(its_zero, its_parallel, wrapped)
        shards.take(units, modules)
        return shards
    if zero is None or parallel is None or parallel.ranks == 1:
        return None
    return Shards(zero, parallel)
