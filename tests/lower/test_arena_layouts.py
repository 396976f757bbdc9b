"""The arena holds nothing that an op reads by its place in memory, or writes in another order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchgraph.config import GraphConfig
from torchgraph.testing import Setup, assert_parity


class Transposed(nn.Module):
    """A batch norm over the last dim."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


class InPlace(nn.Module):
    def __init__(self, written: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.written = written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.written(self.first(x)))


def scaled(y: torch.Tensor) -> torch.Tensor:
    return y.mul_(0.5)


def half_of_it(y: torch.Tensor) -> torch.Tensor:
    y[:, :4] += 1
    return y


MODELS = {
    "transposed batch norm": Transposed,
    "relu in place": lambda: InPlace(nn.ReLU(inplace=True)),
    "scaled in place": lambda: InPlace(scaled),
    "a part in place": lambda: InPlace(half_of_it),
}


def compress(config: GraphConfig) -> None:
    config.enable_compress_memory(True)


def choose(config: GraphConfig) -> None:
    config.enable_choose_best_memory_allocation(True)


@pytest.mark.parametrize("configure", [compress, choose])
@pytest.mark.parametrize("model", MODELS)
def test_steps_are_bitwise_eager(model: str, configure: Any) -> None:
    def make() -> Setup:
        made = MODELS[model]()
        sgd = torch.optim.SGD(made.parameters(), lr=0.01)
        return Setup(made, sgd, lambda m, x: m(x).square().mean())

    def with_aten(config: GraphConfig) -> None:
        configure(config)
        config.set_backend("aten")

    assert_parity(make, [(torch.randn(4, 8, 16),) for _ in range(3)], configure=with_aten)
