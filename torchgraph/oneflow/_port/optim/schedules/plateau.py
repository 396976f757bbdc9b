"""OneFlow's schedule that goes by a measured value."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.optim import Optimizer

_TORCHS = {"last_step": "last_epoch", "num_bad_steps": "num_bad_epochs"}
"""OneFlow's names of what a state holds."""


class ReduceLROnPlateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """torch's, with OneFlow's names. OneFlow: ``oneflow.optim.lr_scheduler.ReduceLROnPlateau``.

    Args:
        optimizer, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps: as in
            torch.
        verbose: print each rate that is reduced.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: Sequence[float] | float = 0,
        eps: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        least: Any = list(min_lr) if isinstance(min_lr, Sequence) else min_lr
        super().__init__(
            optimizer, mode, factor, patience, threshold, threshold_mode, cooldown, least, eps
        )
        self.verbose = verbose

    @property
    def last_step(self) -> int:
        """The number of measured values until now."""
        return self.last_epoch

    @property
    def num_bad_steps(self) -> int:
        """The number of values since the last better one."""
        return self.num_bad_epochs

    def step(self, metrics: Any) -> None:  # type: ignore[override]
        """Take in a measured value, and reduce the rates if it is time."""
        before = [float(group["lr"]) for group in self.optimizer.param_groups]
        super().step(metrics)
        for index, group in enumerate(self.optimizer.param_groups if self.verbose else ()):
            if group["lr"] != before[index]:
                sys.stdout.write(
                    f"Epoch {self.last_epoch:5d}: reducing learning rate of group {index} to "
                    f"{group['lr']:.4e}.\n"
                )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`, of OneFlow's too."""
        super().load_state_dict({_TORCHS.get(key, key): v for key, v in state_dict.items()})
