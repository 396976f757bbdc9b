"""fastai's Learner, whose optimizer is a `tg.optim.Graphed`, beside itself without it."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch

import torchgraph as tg
from tests.integrations.comparing import differences

with warnings.catch_warnings():  # it scripts functions where it is imported
    warnings.simplefilter("ignore")
    basics = pytest.importorskip("fastai.basics")
    pytest.importorskip("fastai.callback.schedule")  # gives a Learner fit_one_cycle
    training = pytest.importorskip("fastai.callback.training")

# Its own: of what Python and torch deprecate, of a file format that is to change.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:fastai")


class _Losses(basics.Callback):
    def __init__(self):
        self.found = []

    def after_batch(self):
        if self.training:
            self.found.append(self.loss.item())


def _train(graphed, clip, tmp_path):
    made = []

    def optimizer(params, lr, **options: Any):
        made.append(torch.optim.AdamW(params, lr, **options))
        if graphed:
            made.append(tg.optim.Graphed(made[-1]))
            made[-1].graph.config.set_backend("aten")
        return made[-1]

    basics.set_seed(0, reproducible=True)
    x = torch.randn(256, 8)
    rows = list(zip(x, (x[:, 0] > 0).long(), strict=True))
    loaders = basics.DataLoaders(
        basics.DataLoader(rows[:192], bs=16, shuffle=True), basics.DataLoader(rows[192:], bs=16)
    )
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
    )
    losses = _Losses()
    learn = basics.Learner(
        loaders,
        model,
        basics.CrossEntropyLossFlat(),
        opt_func=partial(basics.OptimWrapper, opt=optimizer),
        path=tmp_path,
        cbs=[losses, *([training.GradientClip(0.5)] if clip else [])],
    )
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(3, 1e-2)
    learn.save(f"graphed_{graphed}")
    return losses.found, list(model.parameters()), made[0].state_dict(), made[-1]


@pytest.mark.parametrize("clip", [False, True])
def test_one_cycle_in_which_the_update_is_a_program(clip, tmp_path):
    losses, parameters, state, _ = _train(False, clip, tmp_path)
    found, others, other_state, graphed = _train(True, clip, tmp_path)
    assert len(losses) == 36
    assert found == losses
    assert not differences([parameters, state], [others, other_state])
    assert graphed.graph.report().calls.programs >= 30
