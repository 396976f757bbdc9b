"""The two ways to a functional program agree, and views lead to the general one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph.capture.functionalize as way
from torchgraph.debug import text
from torchgraph.each import expanded
from torchgraph.testing import Setup, assert_parity


def mlp() -> Setup:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 2))
    return _setup(model)


def conv() -> Setup:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 1),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    return _setup(model)


class Rows(nn.Module):
    """Writes into parts of a tensor, and reads views of what it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("history", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).clone()
        first = y[0]
        y[1:] *= 2.0
        first += 1.0
        self.history[1].copy_(y[1].detach())
        return y + self.history.sum()


def rows() -> Setup:
    return _setup(Rows())


def _setup(model: nn.Module) -> Setup:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01)
    return Setup(model, optimizer, lambda m, x: m(x).square().mean())


def batches() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(3, 4),) for _ in range(6)]  # three of them replayed


@pytest.mark.parametrize("make", [mlp, conv])
def test_both_ways_give_the_same_program(
    make: Callable[[], Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = assert_parity(make, batches())
    monkeypatch.setattr(way, "functional_form", lambda graph, mode: None)
    traced = assert_parity(make, batches())
    ops = [_ops(graph) for graph in (direct, traced)]
    assert ops[0] == ops[1]


def test_written_views_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    original = way.functional_form

    def watched(graph: Any, mode: Any) -> Any:
        found = original(graph, mode)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(way, "functional_form", watched)
    graph = assert_parity(rows, batches())
    assert taken == [True, False, False]  # the update alone; the step with it, and without
    assert len(graph._cache) == 1


def _ops(graph: Any) -> list[str]:
    program = expanded(next(iter(graph._cache)).program)
    names = [line.split(" = ")[-1].split("(")[0] for line in text.render(program).splitlines()]
    return sorted(name for name in names if name.startswith("aten."))
