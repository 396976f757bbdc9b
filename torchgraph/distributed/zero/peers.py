"""The ranks among which parameters lie in parts, and the means of gradients over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..._torch.distributed import collectives


@dataclass(frozen=True)
class Precision:
    """Dtypes that differ from a parameter's; None: its own."""

    computes: torch.dtype | None = None
    """What modules compute with."""
    reduces: torch.dtype | None = None
    """Gradients are added up in it."""


@dataclass(frozen=True)
class Peers:
    """A process group, each rank of which has its part; and those that have the same parts."""

    group: str
    """The name of the process group."""
    ranks: int
    """How many it has."""
    rank: int
    """Which of them this is."""
    scatters: bool
    """Gradients are reduced to the rank whose part it is, else on all ranks."""
    divisor: float
    """What the sum of all gradients is divided by."""
    hooked: bool = True
    """Hooks of parameters run as in DDP, on this rank's gradients; else where the means are."""
    alike: str = ""
    """The name of the process group of the ranks that have the same parts; empty: no other has."""

    def own_mean(self, whole: torch.Tensor) -> torch.Tensor:
        """The mean of this rank's part: ``(n,)``, of ``(ranks, n)``."""
        if not self.scatters:
            return self.mean(whole)[self.rank]
        mine = collectives.scattered_sum(self._scaled(whole), self.ranks, self.group)
        return self._over_alike(mine)

    def mean(self, whole: torch.Tensor) -> torch.Tensor:
        """The mean of all."""
        found = collectives.wait(collectives.begin_sum(self._scaled(whole), self.group))
        return self._over_alike(found)

    def _scaled(self, whole: torch.Tensor) -> torch.Tensor:
        """Each is multiplied before all are added up, in DDP, too."""
        return whole.mul(1.0 / self.divisor)

    def _over_alike(self, mean: torch.Tensor) -> torch.Tensor:
        if not self.alike:
            return mean
        return collectives.wait(collectives.begin_sum(mean, self.alike))
