"""``oneflow.utils.data``'s samplers, where torch's take other arguments."""

from __future__ import annotations

from typing import Any

import torch.utils.data
from torch.utils.data import Dataset

from ....distributed.words.process import get_rank, get_world_size


class Sampler(torch.utils.data.Sampler[Any]):
    """The base of samplers; ``super().__init__(data_source)`` in one of your own works.

    OneFlow: ``utils.data.Sampler``.
    """

    def __init__(self, data_source: Any = None) -> None:
        pass


class DistributedSampler(torch.utils.data.DistributedSampler[Any]):
    """The part of a data set that a rank takes; one process takes all.

    torch's asks the default process group, which one process need not have. Shuffled indices are
    torch's for the seed, not OneFlow's. OneFlow: ``utils.data.DistributedSampler``.

    Args:
        num_replicas, rank: the ranks, and which one this is, if not given.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        replicas = get_world_size() if num_replicas is None else num_replicas
        this = get_rank() if rank is None else rank
        super().__init__(dataset, replicas, this, shuffle, seed, drop_last)
