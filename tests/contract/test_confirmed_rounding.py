"""Programs that are not exact are confirmed within rounding, where optimizers enlarge it too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.support import thinned, thinned_rows
from torchgraph.errors import ConfirmWarning
from torchgraph.verify import confirm

RATE = 0.02


class Attention(nn.Module):
    """A softmax leaves the keys' bias no gradient: what comes out is rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x + torch.softmax(self.queries(x) @ self.keys(x).T, -1) @ x
        return self.last(x + torch.relu(x)).square().mean()


class Normalized(nn.Module):
    """So does a batch norm to the bias before it."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.norm, self.queries = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.keys(x))
        return self.queries(x + torch.relu(x)).square().mean()


class Training(tg.Graph):
    def __init__(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.allow_fuse_add_to_output(True)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x)
        loss.backward()
        return loss


OPTIMIZERS: dict[str, Any] = {
    "Adam": lambda p: optim.Adam(p, lr=RATE),
    "AdamW": lambda p: optim.AdamW(p, lr=RATE),
    "NAdam": lambda p: optim.NAdam(p, lr=RATE),
    "RMSprop": lambda p: optim.RMSprop(p, lr=RATE, alpha=0.5),
    "Adagrad": lambda p: optim.Adagrad(p, lr=RATE),
}


def trained(model: type[nn.Module], name: str, seed: int = 0) -> None:
    """Until a program is confirmed."""
    torch.manual_seed(seed)
    net = model()
    graph = Training(net, OPTIMIZERS[name](net.parameters()))
    for _ in range(4):
        graph(torch.randn(8, 6))


@pytest.mark.parametrize(
    "case",
    thinned(
        product([Attention, Normalized], OPTIMIZERS),
        keep=[(Attention, "Adam"), (Attention, "RMSprop"), (Normalized, "AdamW")],
    ),
)
def test_a_gradient_that_is_rounding_is_no_fault(case: tuple[type[nn.Module], str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfirmWarning)
        for seed in range(2):
            trained(*case, seed)


FAULTS = {
    "keys.bias": 5 * RATE,
    "queries.bias": 0.2 * RATE,
    "queries.weight": -0.2 * RATE,
    "keys.bias.exp_avg": 1e-3,  # a slot of rounding that is no rounding
}
"""By how much the program is off in a state."""


@pytest.mark.parametrize(
    ("state", "name"),
    thinned_rows(
        (row for row in product(FAULTS, OPTIMIZERS) if "avg" not in row[0] or "Adam" in row[1]),
        lambda state, name: name == "AdamW" or (state, name) == ("keys.bias", "RMSprop"),
    ),
)
def test_a_fault_is_found(state: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = confirm._pairs

    def faulty(*args: Any) -> Iterator[tuple[str, Any, Any]]:
        for fqn, expected, got in original(*args):
            yield fqn, expected, got + FAULTS[state] if str(fqn).endswith(state) else got

    monkeypatch.setattr(confirm, "_pairs", faulty)
    with pytest.warns(ConfirmWarning, match=state):
        trained(Attention, name)
