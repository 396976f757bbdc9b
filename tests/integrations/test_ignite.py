"""An ignite Engine whose process function runs a `tg.step`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchgraph as tg

engines = pytest.importorskip("ignite.engine")


def _train(wrap, engine, accumulation):
    torch.manual_seed(0)
    x = torch.randn(128, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    @wrap
    def step(x, y, last):
        loss = F.cross_entropy(model(x), y)
        (loss / accumulation).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    trainer = engine(lambda e, batch: step(*batch, e.state.iteration % accumulation == 0).item())
    losses = []
    trainer.add_event_handler(
        engines.Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output)
    )
    data = TensorDataset(x, (x[:, 0] > 0).long())
    trainer.run(DataLoader(data, batch_size=16, shuffle=True), max_epochs=4)
    return (losses, model.state_dict(), optimizer.state_dict()), step


def _graph(function):
    step = tg.step(function)
    step.config.set_backend("aten")
    return step


@pytest.mark.parametrize(
    ("engine", "accumulation"),
    [("Engine", 1), ("DeterministicEngine", 2)],
)
def test_the_update_of_an_engine_is_one_program(engine, accumulation):
    kind = getattr(engines, engine)
    expected, _ = _train(lambda step: step, kind, accumulation)
    found, step = _train(_graph, kind, accumulation)
    assert len(found[0]) == 32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert step.report().calls.programs >= 26
    assert not step.report().calls.eager
