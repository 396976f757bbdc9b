"""What an error of ``tg.save`` says: why there is no program, which argument, how to call it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import InvalidOption, NotSavable, StateDictMismatch


@dataclass
class Batch:
    """An argument that no file can hold."""

    x: torch.Tensor


class Eval(tg.Graph):
    """A step that a function takes."""

    def __init__(self, function):
        super().__init__()
        self.net, self.function = nn.Linear(4, 3), function
        self.config.set_fallback("eager")

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.net, *args, **kwargs)


def _ran(function: Any, *args: Any, count: int = 5, **kwargs: Any) -> Eval:
    graph = Eval(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        for _ in range(count):
            graph(*args, **kwargs)
    return graph


def test_a_graph_that_stays_in_eager_says_why(tmp_path):
    x = torch.randn(6, 6)
    graph = _ran(lambda net, x: net(torch.sparse.mm(x.to_sparse(), x[:, :4])), x)
    with pytest.raises(NotSavable, match=r"and stays in eager.*sparse_coo") as raised:
        tg.save(graph, tmp_path / "graph")
    assert "once or twice more" not in str(raised.value)
    tg.save(graph.state_dict(), tmp_path / "state")


def test_an_argument_is_named_by_its_path(tmp_path):
    batch = Batch(torch.randn(6, 4))
    cases = [
        (_ran(lambda net, one: net(one.x), batch), r"build takes .*: args\[0\] is a .*Batch"),
        (_ran(lambda net, **d: net(d["one"].x), one=batch), r": kwargs\['one'\] is a .*Batch"),
        (_ran(lambda net, x: [Batch(net(x))], batch.x), r"build returns .*: output\[0\] is a"),
    ]
    for graph, words in cases:
        with pytest.raises(NotSavable, match=words):
            tg.save(graph, tmp_path / "graph")


def test_the_path_comes_second(tmp_path):
    graph = _ran(lambda net, x: net(x), torch.randn(6, 4))
    for wrong in (tmp_path / "graph", graph):
        with pytest.raises(InvalidOption, match="first, and then the path") as raised:
            tg.save(wrong, graph)
        assert "GRAPH" not in str(raised.value)
    with pytest.raises(InvalidOption, match="not an Eval"):
        tg.load(graph)


def test_entries_are_counted_in_words():
    net = nn.Linear(4, 3)
    graph = tg.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))
    state = graph.state_dict()
    state["_train"]["optimizers"] *= 2
    with pytest.raises(StateDictMismatch, match="has 2 entries, not 1"):
        graph.load_state_dict(state)
    twice = tg.train_step(net, nn.MSELoss(), torch.optim.SGD([net.weight], lr=0.1))
    twice.add_optimizer(torch.optim.SGD([net.bias], lr=0.1))
    with pytest.raises(StateDictMismatch, match="has 1 entry, not 2"):
        twice.load_state_dict(graph.state_dict())
