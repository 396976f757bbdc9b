"""Models and Graphs for the tests of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn, optim

import torchgraph as tg


class Net(nn.Module):
    """A buffer that it writes, a dropout, a constant that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0])
        return self.second(self.drop(torch.relu(self.norm(self.first(x))))) * scale


class Train(tg.Graph):
    """A step of training."""

    def __init__(self, model: nn.Module, optimizer: Any = None, **given: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer or optim.AdamW(model.parameters()), **given)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def own_step() -> tg.Graph:
    """A step that updates by itself, of a new model."""
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    @tg.step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return step


class Evaluate(tg.Graph):
    """A forward pass alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def batch(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes."""
    return torch.randn(rows, 6), torch.randint(0, 3, (rows,))


def run(graph: Any, calls: int = 4, rows: int = 8) -> Any:
    """So many calls; the last result."""
    return [graph(*batch(rows)) for _ in range(calls)][-1]


class Counting(Train):
    """Reads and moves attributes of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.weight, self.seen, self.log = 0.5, 0, {"last": 0}

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.log["last"] = self.seen
        loss = self.weight * nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Trainer:
    """Its step is a Graph."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = optim.AdamW(self.model.parameters())
        self.seen = 0
        self.last: Any = None

    @tg.step
    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.seen += 1
        self.last = loss.detach()
        return loss


class SpotChecks(nn.Module):
    """Python goes by what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        return found * 2 if found.sum() > 0 else found


class _Failing(nn.Module):
    def __init__(self, error: type[BaseException], at: int) -> None:
        super().__init__()
        self.inner = Net()
        self.error, self.at = error, at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        if len(x) == self.at:
            raise self.error
        return found


class Unsupported(nn.Module):
    """NumPy reads what it computes, and it goes by that."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * float(self.inner(x).detach().numpy().mean())
