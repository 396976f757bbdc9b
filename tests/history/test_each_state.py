"""Histories that begin with the first step, and that keep the state of each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

import torchgraph as tg


def _ran(make, every, clamps=False):
    model = nn.Linear(4, 1)
    graph = tg.train_step(model, nn.functional.mse_loss, make(model.parameters()))
    graph.config.keep_history(20, every=every)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 13):
        x = torch.randn(5, 4, generator=generator)
        if step == 10:
            x[2, 1] = torch.nan
        graph(x, torch.zeros(5, 1))
        if clamps:
            with torch.no_grad():
                model.weight.clamp_(-0.2, 0.2)
    return graph


OPTIMIZERS = {
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "sgd": lambda p: optim.SGD(p, lr=0.01),
}


@pytest.mark.parametrize("every", [1, 3, None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_that_the_first_step_made(name, every, tmp_path):
    found = tg.bisect(_ran(OPTIMIZERS[name], every), directory=str(tmp_path / "new"))
    assert found is not None
    assert (found.step, found.kind) == (10, "nan")
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_weights_that_are_changed_between_calls(tmp_path):
    found = tg.bisect(_ran(OPTIMIZERS["adam"], 1, clamps=True), directory=str(tmp_path))
    assert found is not None
    assert found.step == 10
    with pytest.raises(tg.errors.HistoryDiffers, match="every=1"):
        tg.bisect(_ran(OPTIMIZERS["adam"], 3, clamps=True), directory=str(tmp_path))


def test_a_step_that_has_not_come_yet(tmp_path):
    step = _ran(OPTIMIZERS["sgd"], None)
    assert tg.bisect(step, 9, directory=tmp_path) is None
    with pytest.raises(tg.errors.InvalidOption, match="has made 12 steps: there is no step 13 yet"):
        tg.bisect(step, 13, directory=tmp_path)
