"""A module of the Graph replaced by assignment: the next call uses the new one."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.support import settle


class Evaluate(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def test_a_module_assigned_anew_is_used():
    x, old, new = torch.randn(4, 3), nn.Linear(3, 2), nn.Linear(3, 2)
    graph = Evaluate(old)
    assert torch.equal(settle(graph, x), old(x))

    graph.model = new
    assert torch.equal(settle(graph, x), new(x))

    graph.model = old
    assert torch.equal(graph(x), old(x))


def test_a_module_deleted_is_missed():
    graph = Evaluate(nn.Linear(3, 2))
    settle(graph, torch.randn(4, 3))

    del graph.model
    with pytest.raises(AttributeError):
        graph(torch.randn(4, 3))


def test_another_module_added_changes_nothing():
    x, model = torch.randn(4, 3), nn.Linear(3, 2)
    graph = Evaluate(model)
    settle(graph, x)

    graph.other = nn.Linear(2, 2)

    assert torch.equal(graph(x), model(x))
