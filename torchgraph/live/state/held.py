"""The stateful objects of a Graph: the one value that saving and loading take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...amp import Scaler


class Held(NamedTuple):
    """The modules by name, the optimizers, their schedulers, and the scaler."""

    modules: Mapping[str, nn.Module]
    optimizers: Sequence[Optimizer]
    schedulers: Sequence[LRScheduler]
    scaler: Scaler | None
