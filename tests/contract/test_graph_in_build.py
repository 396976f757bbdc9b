"""What `build` does to the Graph itself: taken back with the step, refused where it cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
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
