"""What `build` does to the Graph itself: taken back with the step, refused where it cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.support import replays, same_bits
from torchgraph.errors import GraphNotInitialized, NestedGraph


class Unfreezing(tg.Graph):
    """It trains its body from the first call with ``unfreeze`` on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.unfrozen = False
        self.add_optimizer(optim.SGD(self.head.parameters(), lr=0.1))

    def build(self, x, y):
        if not self.unfrozen:
            self.unfrozen = True
            self.add_optimizer(optim.SGD(self.body.parameters(), lr=0.1))
        loss = (self.head(self.body(x)) - y).square().mean()
        loss.backward()
        return loss


def test_an_optimizer_that_a_failed_call_added_is_gone_with_it():
    graph, x, y = Unfreezing(), torch.randn(5, 3), torch.randn(5, 1)
    with pytest.raises(RuntimeError):
        graph(torch.randn(5, 7), y)
    assert not graph.unfrozen
    assert graph.last_lr == [0.1]
    losses = [graph(x, y).item() for _ in range(4)]
    assert graph.last_lr == [0.1, 0.1]
    assert losses[-1] < losses[0]


def test_an_optimizer_that_a_check_added_is_gone_with_it():
    graph, x, y = Unfreezing(), torch.randn(5, 3), torch.randn(5, 1)
    graph.check(x, y)
    assert graph.last_lr == [0.1]
    graph(x, y)
    assert graph.last_lr == [0.1, 0.1]


class Keeping(tg.Graph):
    """It makes an optimizer of its body on the way, and does not step it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.spares: list[optim.Optimizer] = []
        self.add_optimizer(optim.SGD(self.head.parameters(), lr=0.1))

    def build(self, x, y):
        if not self.spares:
            self.spares.append(optim.SGD(self.body.parameters(), lr=0.1))
        loss = (self.head(self.body(x)) - y).square().mean()
        loss.backward()
        return loss


def test_an_optimizer_that_build_only_keeps_is_not_stepped():
    graph, x, y = Keeping(), torch.randn(5, 3), torch.randn(5, 1)
    body, head = graph.body.weight.clone(), graph.head.weight.clone()
    for _ in range(4):
        graph(x, y)
    assert torch.equal(graph.body.weight, body)
    assert not torch.equal(graph.head.weight, head)


class Growing(tg.Graph):
    """It trains its body, too, from a call on."""

    def __init__(self, late: int | None = None, *, scheduled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.calls, self.late, self.scheduled = 0, late, scheduled
        self.add_optimizer(optim.SGD(self.head.parameters(), lr=0.1))

    def unfreeze(self) -> None:
        optimizer = optim.Adam(self.body.parameters(), lr=0.1)
        rates = optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if self.scheduled else None
        self.add_optimizer(optimizer, lr_sch=rates)

    def build(self, x, y):
        if self.calls == self.late:
            self.unfreeze()
        self.calls += 1
        loss = (self.head(self.body(x)) - y).square().mean()
        loss.backward()
        return loss


def grown_in_eager(calls: int, since: int, x, y, *, scheduled: bool = False):
    """The losses and the body of a `Growing` written out."""
    torch.manual_seed(0)
    body, head = nn.Linear(3, 4), nn.Linear(4, 1)
    both = [optim.SGD(head.parameters(), lr=0.1), optim.Adam(body.parameters(), lr=0.1)]
    rates = optim.lr_scheduler.ExponentialLR(both[1], 0.5 if scheduled else 1.0)
    losses = []
    for call in range(calls):
        loss = (head(body(x)) - y).square().mean()
        loss.backward()
        for optimizer in both if call >= since else both[:1]:
            optimizer.step()
        if call >= since:
            rates.step()
        body.zero_grad()
        head.zero_grad()
        losses.append(loss.detach())
    return losses, body


@pytest.mark.parametrize("since", [1, 3, 5])
def test_an_optimizer_that_is_added_between_calls_steps_from_then_on(since):
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    expected, body = grown_in_eager(11, since, x, y)
    graph, losses = Growing(), []
    graph.config.set_look_again("off")
    for call in range(11):
        if call == since:
            graph.unfreeze()
        losses.append(graph(x, y))
    assert same_bits(losses, expected)
    assert torch.equal(graph.body.weight, body.weight)
    assert max(one.runs for one in replays(graph)) >= 2


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("since", [0, 1, 5])
def test_an_optimizer_that_build_adds_steps_from_that_call_on(since, scheduled):
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    expected, body = grown_in_eager(11, since, x, y, scheduled=scheduled)
    graph = Growing(since, scheduled=scheduled)
    graph.config.set_look_again("off")
    losses = [graph(x, y) for _ in range(11)]
    assert same_bits(losses, expected)
    assert torch.equal(graph.body.weight, body.weight)
    assert max(one.runs for one in replays(graph)) >= 2


class Looking(tg.Graph):
    """Its build looks at the Graph."""

    def __init__(self, look):
        super().__init__()
        self.model, self.look = nn.Linear(3, 1), look

    def build(self, x):
        self.look(self, x)
        return self.model(x)


@pytest.mark.parametrize(
    "look",
    [lambda graph, x: graph.check(x), lambda graph, x: graph.profile(x)],
    ids=["check", "profile"],
)
def test_a_graph_that_looks_at_itself_is_told(look):
    with pytest.raises(NestedGraph, match="inside of its own build"):
        Looking(look)(torch.randn(2, 3))


def test_a_graph_whose_making_failed_says_so():
    class Half(tg.Graph):
        build = 5  # type: ignore[assignment]

        def __init__(self) -> None:
            try:
                super().__init__()
            except tg.errors.BuildNotOverridden:
                self.failed = True

    with pytest.raises(GraphNotInitialized, match="name is read before super"):
        assert Half().name
