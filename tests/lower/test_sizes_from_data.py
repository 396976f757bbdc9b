"""Values whose size depends on data: nothing is written in place, laid out or planned by it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchgraph as tg


class Chosen(tg.Graph):
    """The positive entries, through ops that have in-place forms, and a step on their sum."""

    def __init__(self, backend: str, *, memory: bool = False) -> None:
        super().__init__()
        self.model = nn.Linear(16, 16)
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.config.set_backend(backend)
        if memory:
            self.config.enable_straighten_algorithm("MemoryFirst")
            self.config.enable_compress_memory()
            self.config.enable_choose_best_memory_allocation()

    def build(self, x: torch.Tensor) -> torch.Tensor:
        chosen = step(self.model, x)
        chosen.sum().backward()
        return chosen


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = model(x)
    chosen = (out[out > 0] * 2 + 1).relu()
    return torch.cat([chosen, out.masked_select(out < 0).exp()]).view(-1, 1).view(-1)


@pytest.mark.parametrize("memory", [False, True])
def test_aten_is_bitwise_eager(memory: bool) -> None:
    graph = Chosen("aten", memory=memory)
    for x in torch.randn(3, 64, 16):
        want = step(graph.model, x)
        assert torch.equal(graph(x), want)


def test_inductor_gives_the_same() -> None:
    graph = Chosen("inductor")
    for x in torch.randn(2, 64, 16):
        want = step(graph.model, x)
        torch.testing.assert_close(graph(x), want)
