"""A small training Graph with a bit of everything that reports and checks look at."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torchgraph as tg


class Net(nn.Module):
    """Linear layers, a batch norm, dropout, a plain number and a literal tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(8, 2)
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.fc(x))))
        return self.head(hidden) * self.scale + torch.tensor([0.5, 0.25])


class Train(tg.Graph):
    """One training step; ``weight`` is a Python number of the call."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor, y: torch.Tensor, weight: float = 1.0) -> Any:
        loss = weight * nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


class Evaluate(tg.Graph):
    """The same model without an optimizer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: torch.Tensor) -> Any:
        return {"out": self.model(x)}


def batch(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    return torch.randn(rows, 4), torch.randn(rows, 2)


def trainer(kind: Any = torch.optim.AdamW, **options: Any) -> Train:
    """A fresh Graph around a fresh model."""
    model = Net()
    return Train(model, kind(model.parameters(), **options))
