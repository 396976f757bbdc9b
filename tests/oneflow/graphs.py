"""Graphs that the tests of OneFlow's spellings ask."""

import torch
from torch import nn

from torchgraph.oneflow._port.graph.graph import Graph


class Trains(Graph):
    """A step of training with dropout, batch norm and Adam."""

    def __init__(self, model: nn.Module | None = None, **options: bool):
        super().__init__()
        self.model = model or made()
        self.add_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.1), **options)

    def build(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


class Evaluates(Graph):
    """The forward of a model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def build(self, x):
        return self.model(x)


def made() -> nn.Module:
    """A model that draws and counts."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def batch() -> torch.Tensor:
    return torch.arange(15.0).reshape(5, 3) / 10
