"""Modules whose parameters come with the first call, beside an optimizer: eager's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import torchgraph as tg

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LazyLinear(4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.LazyLinear(2))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(6, 3), torch.randn(6, 2)) for _ in range(count)]


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)


def losses(step: Any) -> list[torch.Tensor]:
    """Of a few steps; the first draws what lazy layers begin with."""
    given = batches(5)
    torch.manual_seed(2)
    return [step(*batch).detach() for batch in given]


def eager(net: nn.Module, optimizer: optim.Optimizer, clip: float | None, scale: Any) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scale.step(optimizer)
        scale.update()
        return loss

    return step


@pytest.mark.parametrize(
    ("kind", "clip", "scaled"),
    [(optim.SGD, None, False), (optim.SGD, 0.01, True), (optim.AdamW, 0.01, False)],
)
def test_a_graph_trains_them(kind, clip, scaled):
    off = torch.amp.GradScaler("cpu", enabled=False)
    plain, mine = model(), model()
    expected = eager(plain, kind(plain.parameters(), lr=0.1), clip, scaler() if scaled else off)
    clipping = {"clip_grad_max_norm": clip, "clip_grad_norm_type": 2.0} if clip else {}
    optimizer = kind([{"params": list(mine.parameters()), **clipping}], lr=0.1)
    graph = tg.train_step(mine, functional.mse_loss, optimizer)
    if scaled:
        graph.set_grad_scaler(scaler())

    assert losses(graph) == losses(expected)
    assert all(one.grad is None for one in mine.parameters())
    for name, value in plain.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value)


def test_a_step_trains_them():
    off = torch.amp.GradScaler("cpu", enabled=False)
    plain, mine = model(), model()
    expected = eager(plain, optim.AdamW(plain.parameters()), 0.5, off)
    step = tg.step(eager(mine, optim.AdamW(mine.parameters()), 0.5, off))
    assert losses(step) == losses(expected)
    for left, right in zip(plain.parameters(), mine.parameters(), strict=True):
        assert torch.equal(left, right)
        assert left.grad is not None
        assert torch.equal(left.grad, right.grad)
