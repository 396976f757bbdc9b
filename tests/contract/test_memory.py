"""What a Graph keeps alive: not its batches, and nothing once it is gone."""

import gc
import weakref

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests import support
from tests.support import settle


def made():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    return tg.train_step(model, nn.MSELoss(), optimizer)


@pytest.mark.usefixtures("small_heap")
def test_a_batch_dies_after_its_call():
    graph = made()
    for _ in range(4):  # recorded, confirmed, replayed
        x, y = torch.randn(3, 4), torch.randn(3, 2)
        alive = weakref.ref(x)
        graph(x, y)
        del x
        gc.collect()
        assert alive() is None


@pytest.mark.usefixtures("small_heap")
def test_a_graph_dies_with_its_programs():
    graph = made()
    settle(graph, torch.randn(3, 4), torch.randn(3, 2))
    (replay,) = support.replays(graph)
    alive = [weakref.ref(graph), weakref.ref(replay), weakref.ref(replay.program.gm)]
    del graph, replay
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]
