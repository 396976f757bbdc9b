"""The ranks over which parameters are sharded, and means of gradients over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..._torch.distributed import collectives


@dataclass(frozen=True)
class Precision:
    """Dtypes of mixed precision; None stands for the dtype of the parameter."""

    computes: torch.dtype | None = None
    """What modules compute with."""
    reduces: torch.dtype | None = None
    """Gradients are added up in it."""


@dataclass(frozen=True)
class Peers:
    """The process group over which parameters are sharded, and settings of its reductions."""

    group: str
    """The name of the process group."""
    ranks: int
    """The number of ranks of the group."""
    rank: int
    """This rank in the group."""
    scatters: bool
    """Gradients are reduced to the rank whose part it is, else on all ranks."""
    divisor: float
    """The divisor of the sum of all gradients."""
    hooked: bool = True
    """Hooks of parameters run as in DDP, on this rank's gradients; else where the means are."""
    alike: str = ""
    """The name of the process group of the ranks that have the same parts; empty: no other has."""

    def own_mean(self, whole: torch.Tensor) -> torch.Tensor:
        """Reduce-scatter to the mean of this rank's shard: ``(n,)``, of ``(ranks, n)``."""
        if not self.scatters:
            return self.mean(whole)[self.rank]
        mine = collectives.scattered_sum(self._scaled(whole), self.ranks, self.group)
        return self._over_alike(mine)

    def mean(self, whole: torch.Tensor) -> torch.Tensor:
        """All-reduce to the mean over all ranks."""
        found = collectives.wait(collectives.begin_sum(self._scaled(whole), self.group))
        return self._over_alike(found)

    def _scaled(self, whole: torch.Tensor) -> torch.Tensor:
        """A gradient divided by the number of ranks before the sum, as in DDP."""
        return whole.mul(1.0 / self.divisor)

    def _over_alike(self, mean: torch.Tensor) -> torch.Tensor:
        if not self.alike:
            return mean
        return collectives.wait(collectives.begin_sum(mean, self.alike))
