"""The two small models of the parity tests, their batches, and both sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchgraph.testing import Setup

Make = Callable[[Any], Optimizer]


class Mlp(nn.Module):
    """Linear, dropout, linear: random draws, a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.first(x))))


class Unused(Mlp):
    """With a layer that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


class Flat(Mlp):
    """Its parameters are pieces of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.cat([p.detach().flatten() for p in self.parameters()])
        at = 0
        for layer in (self.first, self.second):
            for name, old in list(layer.named_parameters()):
                piece = whole[at : at + old.numel()].view(old.shape)
                setattr(layer, name, nn.Parameter(piece))
                at += old.numel()


class ConvNet(nn.Module):
    """Convolution, BatchNorm, pooling: buffers that the forward pass writes, 4-D gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class ChannelsLast(ConvNet):
    """Its gradients lie in another layout than their parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class Frozen(ConvNet):
    """One of its parameters is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.weight.requires_grad_(False)


class Matrices(Mlp):
    """Two 2-D parameters and nothing else: what Muon takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8, bias=False)
        self.second = nn.Linear(8, 3, bias=False)


class TallMatrices(Matrices):
    """More rows than columns, which Muon transposes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 24, bias=False)
        self.second = nn.Linear(24, 3, bias=False)


SHAPES: dict[type[nn.Module], tuple[int, ...]] = {
    Mlp: (5, 6),
    ConvNet: (5, 2, 6, 6),
    Matrices: (5, 6),
    TallMatrices: (5, 6),
}


def cross_entropy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of all parity tests."""
    return torch.nn.functional.cross_entropy(model(x), y)


def batches(model: type[nn.Module], count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Different data for each step, the same for everyone."""
    source = torch.Generator().manual_seed(1)
    shape = next(SHAPES[kind] for kind in model.mro() if kind in SHAPES)
    return [
        (torch.randn(shape, generator=source), torch.randint(3, shape[:1], generator=source))
        for _ in range(count)
    ]


def setup(model: type[nn.Module], make: Make, schedule: Any = None) -> Callable[[], Setup]:
    """``make(parameters)`` over a fresh model, and ``schedule(optimizer)`` over that."""

    def fresh() -> Setup:
        module = model()
        optimizer = make(module.parameters())
        return Setup(module, optimizer, cross_entropy, schedule and schedule(optimizer))

    return fresh


def of_dtype(make: Make, dtype: torch.dtype, schedule: Any = None) -> Callable[[], Setup]:
    """``make(parameters)`` over an Mlp whose numbers are of another dtype."""

    def fresh() -> Setup:
        module = Mlp().to(dtype)
        optimizer = make(module.parameters())
        return Setup(
            module,
            optimizer,
            lambda m, x, y: cross_entropy(m, x.to(dtype), y),
            schedule and schedule(optimizer),
        )

    return fresh
