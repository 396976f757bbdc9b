"""A skorch net whose training step is a `tg.step` over its module, criterion and optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg

skorch = pytest.importorskip("skorch")


class _Net(skorch.NeuralNetClassifier):
    def on_train_begin(self, net, X=None, y=None, **kwargs: object):
        super().on_train_begin(net, X, y, **kwargs)
        module, criterion, optimizer = self.module_, self.criterion_, self.optimizer_

        @tg.step
        def step(x, y):
            optimizer.zero_grad()
            y_pred = module(x)
            loss = criterion(y_pred, y)
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach(), "y_pred": y_pred.detach()}

        step.config.set_backend("aten")
        self.step = step

    def train_step(self, batch, **fit_params: object):
        self._set_training(True)
        return self.step(*batch)


def _train(kind):
    torch.manual_seed(0)
    x = torch.randn(128, 16).numpy()
    net = kind(
        _Module,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        lr=1e-2,
        max_epochs=4,
        batch_size=16,
        train_split=None,
        iterator_train__shuffle=True,
        callbacks=[("lr", skorch.callbacks.LRScheduler("StepLR", step_size=5, step_every="batch"))],
        verbose=0,
    )
    net.fit(x, (x[:, 0] > 0).astype(np.int64))
    losses = [batch["train_loss"] for epoch in net.history for batch in epoch["batches"]]
    return (losses, net.module_.state_dict(), net.optimizer_.state_dict()), net


class _Module(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


def test_the_step_of_a_net_is_one_program():
    expected, _ = _train(skorch.NeuralNetClassifier)
    found, net = _train(_Net)
    assert len(found[0]) == 32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert net.step.report().calls.programs >= 26
    assert not net.step.report().calls.eager
