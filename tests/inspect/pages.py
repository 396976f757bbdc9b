"""Graphs of which pages are made in tests, and what the script of a page gets."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.inspect.page.data import page_data
from torchgraph.inspect.report import Report

from .models import Train, batch, trainer

HOSTILE = "</script><script>hacked=1</script>"


def data_of(report: Report, profile=None) -> dict:
    """What the script of the page gets, through JSON."""
    return json.loads(json.dumps(page_data(report._shown(), profile), allow_nan=False))


def trained(calls: int = 4, configure: Callable[[Train], object] = lambda graph: None) -> Train:
    graph = trainer()
    graph.config.set_backend("aten")
    configure(graph)
    for _ in range(calls):
        graph(*batch(4), weight=2.0)
    return graph


class Hostile(nn.Module):
    """Names and a repr that are markup."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(HOSTILE, nn.Linear(4, 4))
        self.add_module("<img src=x onerror=hacked=1>", nn.ReLU())

    def extra_repr(self) -> str:
        return f"<b onmouseover=hacked=1>{{{{script}}}} &amp; {HOSTILE} \ud800"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = module(x)
        return x


class TrainHostile(Train):
    def build(self, x: torch.Tensor, y: torch.Tensor, tag: str = HOSTILE) -> torch.Tensor:
        loss = (self.model(x) - 1.0).square().mean()
        loss.backward()
        return loss


TrainHostile.__name__ = HOSTILE


def hostile() -> Report:
    model = Hostile()
    graph = TrainHostile(model, torch.optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("aten")
    for _ in range(4):
        graph(*batch(4))
    return graph.report()


class InEager(tg.Graph):
    """NumPy is left by no program."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
        self.config.set_fallback("eager")

    def build(self, x: torch.Tensor) -> object:
        return self.model(x).detach().numpy().sum()


def in_eager() -> Report:
    graph = InEager()
    with pytest.warns(tg.errors.EagerWarning):
        graph(torch.randn(3, 4))
    for _ in range(2):
        graph(torch.randn(3, 4))
    return graph.report()
