"""Sparse tensors: no program holds one, so a step that reads one runs in eager and says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.contract.models import Eval
from torchgraph.errors import EagerWarning, NoProgram

HELD: dict[str, torch.Tensor] = {}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
}


class Convolution(nn.Module):
    """One layer over a graph, whose adjacency lies where ``where`` says."""

    def __init__(self, adjacency: torch.Tensor, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where, self.linear = where, nn.Linear(4, 4)
        HELD["adjacency"] = adjacency
        if where == "buffer":
            self.register_buffer("adjacency", adjacency)
        elif where == "attribute":
            self.adjacency = adjacency

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adjacency = HELD["adjacency"] if self.where == "global" else self.adjacency
        return torch.sparse.mm(adjacency, self.linear(x))


class Train(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optim.AdamW(model.parameters()))
        self.config.set_fallback("eager")

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.fixture
def adjacency(layout: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls CSR beta
        return LAYOUTS[layout](torch.eye(4).roll(1, 0) + torch.eye(4))


PLACES = [("coo", "buffer"), ("csr", "attribute"), ("coo", "global")]


@pytest.mark.parametrize(("layout", "where"), PLACES)
def test_training(adjacency: torch.Tensor, where: str) -> None:
    twin, model = Convolution(adjacency, where), Convolution(adjacency, where)
    other, graph = optim.AdamW(twin.parameters()), Train(model)
    batches = [torch.randn(4, 4) for _ in range(5)]

    def compare() -> None:
        for x in batches:
            other.zero_grad()
            loss = twin(x).square().mean()
            loss.backward()
            other.step()
            assert support.same_bits(graph(x), loss.detach())
            assert all(map(support.same_bits, model.parameters(), twin.parameters()))

    with pytest.warns(EagerWarning, match="layout torch.sparse_") as told:
        compare()
    assert len(told) == 1


@pytest.mark.parametrize(("layout", "where"), PLACES)
@torch.no_grad()
def test_evaluation(adjacency: torch.Tensor, where: str) -> None:
    model = Convolution(adjacency, where)
    graph = Eval(model)
    for _ in range(2):
        with pytest.raises(NoProgram, match=r"dense tensors only(?s:.*)set_fallback"):
            graph(torch.ones(4, 4))
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="program holds dense tensors only"):
        first = graph(torch.ones(4, 4))
    assert support.same_bits(first, model(torch.ones(4, 4)))
    for x in torch.randn(4, 4, 4):
        assert support.same_bits(graph(x), model(x))
