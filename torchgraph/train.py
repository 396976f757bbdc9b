"""A whole training step in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .graph import Graph


class TrainStep(Graph):
    """The Graph behind `train_step`."""

    def __init__(
        self, model: nn.Module, loss_fn: Callable[..., Any], optimizer: Optimizer, lr_sch: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.add_optimizer(optimizer, lr_sch=lr_sch)

    def build(self, *batch: Any) -> Any:
        """All but the last argument go into the model, the last one into the loss."""
        *inputs, target = batch
        loss = self.loss_fn(self.model(*inputs), target)
        loss.backward()
        return loss


def train_step(
    model: nn.Module, loss_fn: Callable[..., Any], optimizer: Optimizer, lr_sch: Any = None
) -> Graph:
    """A Graph in one line: ``step(x, y)`` runs ``loss_fn(model(x), y)``, backward and the update.

    Args:
        loss_fn: a module or function of (model output, target) that returns a scalar tensor.
        lr_sch: as for `Graph.add_optimizer`.
    """
    return TrainStep(model, loss_fn, optimizer, lr_sch)
