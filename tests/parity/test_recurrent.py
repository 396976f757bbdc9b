"""torch's recurrent modules: their kernels ask for the grad mode, they list their weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchgraph.testing import Setup, assert_parity


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(4, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_three_steps_are_bitwise_eager(kind: str) -> None:
    def make() -> Setup:
        model = Recurrent(kind)
        optimizer = torch.optim.Adam(model.parameters())
        return Setup(model, optimizer, lambda m, x: m(x).square().mean())

    assert_parity(make, [(torch.randn(3, 5, 4),) for _ in range(3)])
