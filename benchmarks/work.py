"""A piece of work: a model, a batch and a loss, made anew for each contender from one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SEED = 0
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
"""Of the forward part, under autocast where it is not None."""


class Work(NamedTuple):
    """One training step without its optimizer: ``loss_fn(model(x), y)``."""

    model: nn.Module
    x: Tensor
    y: Tensor
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    amp: torch.dtype | None = None
    """The dtype of autocast around the forward part; None for none."""


@dataclass(frozen=True)
class Case:
    """A named piece of work."""

    name: str
    about: str
    make: Callable[[], Work]

    def on(self, device: torch.device, amp: torch.dtype | None = None) -> Work:
        """The same weights and the same batch at each call."""
        torch.manual_seed(SEED)
        work = self.make()
        on_device = (work.model.to(device), work.x.to(device), work.y.to(device))
        return Work(*on_device, work.loss_fn, amp)


def next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean cross-entropy over all places."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
