"""Arguments that hold the step they are given to, and objects that meet one twice."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchgraph as tg
from torchgraph.structure import map_tensors


class Engine:
    """As trainers have it: it calls the step, and gives it itself."""

    def __init__(self, step: Any) -> None:
        self.step = step
        self.handlers: dict[str, list[Any]] = {"end": [(self.seen, (), {})]}
        self.output: Any = None

    def seen(self) -> Any:
        return self.output

    def run(self, batches: list[Any]) -> list[float]:
        return [self.step(self, batch).item() for batch in batches]


class Doubled(tg.Graph):
    def build(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def trained(wrap: Any, held: Any = None) -> tuple[list[float], nn.Module]:
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def update(engine: Engine, batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        x, y = batch
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    engine = Engine(wrap(update))
    engine.held = (net, optimizer, held)
    data = [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(6)]
    return engine.run(data), net


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(lambda: None, id="itself"),
        pytest.param(Doubled, id="another_graph"),
        pytest.param(lambda: Engine(None).seen, id="a_bound_method"),
        pytest.param(
            lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4))),
            id="a_loader",
        ),
    ],
)
def test_an_argument_that_holds_the_step(held):
    steps = []

    def wrap(function: Any) -> Any:
        step = tg.step(function)
        steps.append(step)
        return step

    expected, net = trained(lambda function: function)
    losses, copy = trained(wrap, held())
    assert losses == expected
    for one, other in zip(copy.parameters(), net.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "Calls: 4 by programs, 2 recorded, 0 in eager" in str(steps[0].report())


class Node:
    """Of a structure that goes round."""


def test_what_is_met_again_before_it_is_made():
    pair = (torch.ones(2),)
    for given in ([{"a": pair}, pair], [[[pair]], {"b": pair}], {"a": {"b": pair}, "c": pair}):
        made = map_tensors(given, lambda tensor: tensor + 1)
        first, last = made.values() if isinstance(made, dict) else made
        inner = first
        while not isinstance(inner, tuple):
            inner = next(iter(inner.values())) if isinstance(inner, dict) else inner[0]
        last = last["b"] if isinstance(last, dict) else last
        assert inner is last
        assert torch.equal(last[0], torch.full((2,), 2.0))


def test_a_frozen_set_in_a_circle():
    node = Node()
    node.all, node.x = frozenset([node]), torch.ones(2)
    (made,) = map_tensors(node.all, lambda tensor: tensor + 1)
    assert made.all == {made}
    assert torch.equal(made.x, torch.full((2,), 2.0))
