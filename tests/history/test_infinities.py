"""Infinities that a step means to have: of masks, which a softmax takes away, and in buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchgraph as tg
from torchgraph.errors import HistoryTooShort
from torchgraph.inspect.bisecting.bisect import BadStep

Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
NEGATIVE = torch.tensor(float("-inf"))


def _fill(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~keep, float("-inf"))


def _where(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, scores * 1.5, float("-inf")) + 1


def _number(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, scores, NEGATIVE)


def _added(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return scores + torch.zeros_like(scores).masked_fill(~keep, float("-inf"))


def _full(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, scores, torch.full_like(scores, float("-inf")))


class Attention(nn.Module):
    """Attention with a mask."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.query, self.out, self.mask = nn.Linear(6, 6), nn.Linear(6, 3), mask

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q = self.query(x)
        return self.out(self.mask(q @ q.T, keep).softmax(-1) @ x)


class Train(tg.Graph):
    """A regression."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        self.config.set_backend("aten")
        self.config.keep_history(40)

    def build(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.model(x, *rest), torch.zeros(len(x), 3))
        loss.backward()
        return loss


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def _keep(step: int, bad: int, *, masks: bool) -> torch.Tensor:
    keep = torch.ones(8, 8, dtype=torch.bool)
    keep = keep.tril() if masks else keep
    if step == bad:
        keep[3] = False
    return keep


def _blamed(found: BadStep | None) -> tuple[int, str, str]:
    assert found is not None
    return found.step, found.op, found.came_with


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("bad", [1, 9])
@pytest.mark.parametrize("mask", [_fill, _where, _number, _added, _full])
def test_a_row_without_any_key(mask, bad, masks, tmp_path):
    graph = Train(Attention(mask))
    for step in range(1, 13):
        graph(torch.randn(8, 6), _keep(step, bad, masks=masks))
    found = tg.bisect(graph, directory=tmp_path)
    assert _blamed(found) == (bad, "aten._softmax.default", "")
    assert found is not None
    assert found.line is not None
    assert ".softmax(-1)" in found.line.text


class Added(nn.Module):
    """Attention with a mask that is an argument, or a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        causal = torch.full((8, 8), float("-inf")).triu(1)
        self.register_buffer("causal", causal)

    def forward(self, x: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        q = self.query(x)
        scores = q @ q.T + self.causal
        for mask in masks:
            scores = scores + mask
        return self.out(scores.softmax(-1) @ x)


def test_a_mask_that_is_an_argument(tmp_path):
    graph = Train(Added())
    for step in range(1, 13):
        mask = torch.zeros(8, 8)
        mask[5, :4] = float("-inf")
        if step == 9:
            mask[2] = float("-inf")
        graph(torch.randn(8, 6), mask)
    assert _blamed(tg.bisect(graph, directory=tmp_path)) == (9, "aten._softmax.default", "")


def test_a_mask_that_is_a_buffer(tmp_path):
    graph = Train(Added())
    graph.config.keep_history(6)
    for _ in range(20):
        graph(torch.randn(8, 6))
    assert tg.bisect(graph, directory=tmp_path) is None
    x = torch.randn(8, 6)
    x[2, 1] = float("inf")
    graph(x)
    found = tg.bisect(graph, directory=tmp_path)
    assert found is not None
    assert (found.step, found.came_with) == (21, "args[0]")


def test_a_weight_that_is_infinite_before_the_first_step(tmp_path):
    graph = Train(Added())
    with torch.no_grad():
        graph.model.out.bias[0] = float("inf")
    graph(torch.randn(8, 6))
    with pytest.raises(HistoryTooShort, match=r"model\.out\.bias is not finite before step 1"):
        tg.bisect(graph, directory=tmp_path)


class Overflow(nn.Module):
    """An exponential, with a mask before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, *masks: Any) -> torch.Tensor:
        scores = self.first(x)
        for mask in masks:
            scores = scores.masked_fill(mask, float("-inf"))
        large = scores.exp()
        return self.last(large / large.sum(-1, keepdim=True))


@pytest.mark.parametrize("bad", [1, 9])
def test_what_overflows_is_no_mask(bad, tmp_path):
    graph = Train(Overflow())
    for step in range(1, 13):
        x = torch.randn(8, 6) * (1e4 if step == bad else 1)
        graph(x, torch.ones(8, 6).triu(3).bool())
    assert _blamed(tg.bisect(graph, directory=tmp_path)) == (bad, "aten.exp.default", "")


class Logs(nn.Module):
    """A logarithm that is infinite in places in each step, and of which one is taken."""

    def __init__(self, take: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.last, self.take = nn.Linear(6, 3), take

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) - self.take(x.relu().log())


TAKES = {
    "aten.max.default": torch.max,
    "aten.select.int": lambda logs: logs[0, 0].square(),
}


@pytest.mark.parametrize("op", TAKES)
def test_where_an_infinity_of_each_step_gets_through(op, tmp_path):
    graph = Train(Logs(TAKES[op]))
    for step in range(1, 13):
        x = torch.randn(8, 6)
        x[0, 0] = 2
        graph(-x.abs() if step == 9 else x)
    assert _blamed(tg.bisect(graph, directory=tmp_path)) == (9, op, "")


class Manual(nn.Module):
    """A softmax written out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.first(x).masked_fill(mask, float("-inf"))
        large = (scores - scores.amax(-1, keepdim=True)).exp()
        return self.last(large / large.sum(-1, keepdim=True))


def test_a_softmax_written_out(tmp_path):
    graph = Train(Manual())
    for step in range(1, 13):
        mask = torch.zeros(8, 6, dtype=torch.bool)
        mask[2, : 6 if step == 9 else 3] = True
        graph(torch.randn(8, 6), mask)
    assert _blamed(tg.bisect(graph, directory=tmp_path)) == (9, "aten.sub.Tensor", "")


def test_what_is_only_a_mask_is_named_all_the_same(tmp_path):
    class Fills(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, x, fill):
            return self.last(x).masked_fill(fill, float("inf"))

    graph = Train(Fills())
    for step in range(1, 13):
        graph(torch.randn(8, 6), torch.full((8, 3), step == 9))
    found = tg.bisect(graph, directory=tmp_path)
    assert _blamed(found) == (9, "aten.masked_fill.Scalar", "")
