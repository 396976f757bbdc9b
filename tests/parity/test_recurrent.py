"""torch's recurrent modules: their kernels ask for the grad mode, they list their weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support import thinned
from torchgraph.testing import Setup, assert_parity


class Recurrent(nn.Module):
    def __init__(self, kind: str, hidden: int, **options: bool) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(4, hidden, num_layers=2, dropout=0.3, **options)
        self.head = nn.LazyLinear(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


# A GRU's gates are written in place, in parts of rows: vector code and its remainder take turns.
@pytest.mark.parametrize("hidden", thinned([8, 20, 32], keep=[20]))
@pytest.mark.parametrize("options", [{"batch_first": True}, {"bidirectional": True}])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_three_steps_are_bitwise_eager(kind: str, options: dict[str, bool], hidden: int) -> None:
    def make() -> Setup:
        model = Recurrent(kind, hidden, **options)
        model(torch.zeros(3, 5, 4))
        optimizer = torch.optim.Adam(model.parameters())
        return Setup(model, optimizer, lambda m, x: m(x).square().mean())

    assert_parity(make, [(torch.randn(3, 5, 4),) for _ in range(6)])
