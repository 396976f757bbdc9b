"""``tg.step``: updates by hand, averages of weights, gradients as results, random draws."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils

from tests.contract.loops import Loop, adam, assert_as_eager, mlp, pairs, sgd, supervised


@pytest.mark.parametrize("clear", ["none", "zero_"])
def test_an_update_by_hand(clear):
    def make():
        weight = torch.randn(4, 1, requires_grad=True)
        bias = torch.zeros(1, requires_grad=True)

        def step(x, y):
            loss = functional.mse_loss(x @ weight + bias, y)
            loss.backward()
            with torch.no_grad():
                for parameter in (weight, bias):
                    parameter -= 0.1 * parameter.grad
                    if clear == "none":
                        parameter.grad = None
                    else:
                        parameter.grad.zero_()
            return loss

        return Loop(step, [weight, bias])

    assert_as_eager(make, pairs(8), replayed=6 if clear == "none" else 5)


def test_an_optimizer_of_a_bare_tensor():
    def make():
        weight = torch.randn(4, 1, requires_grad=True)
        optimizer = adam([weight])

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(x @ weight, y)
            loss.backward()
            optimizer.step()
            return loss

        return Loop(step, [weight, optimizer])

    assert_as_eager(make, pairs(8), replayed=6)


def test_an_average_of_the_weights():
    def make():
        model = mlp()
        average = copy.deepcopy(model)
        optimizer = adam(model.parameters())

        def step(x, y):
            loss = functional.mse_loss(model(x), y + average(x).detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
            return loss.detach()

        return Loop(step, [model, average, optimizer])

    assert_as_eager(make, pairs(8), replayed=6)


def test_torchs_own_average_of_the_weights():
    def make():
        model = mlp()
        average = swa_utils.AveragedModel(model)

        def then(net, loss):
            average.update_parameters(net)

        return supervised(model=lambda: model, then=then, owners=[average])

    assert_as_eager(make, pairs(8), replayed=5)


def test_norms_of_gradients_and_of_weights_are_results():
    def make():
        model = mlp()
        optimizer = adam(model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            norms = torch.stack([p.grad.norm() for p in model.parameters()])
            optimizer.step()
            return {"loss": loss, "norms": norms, "weights": [p.norm() for p in model.parameters()]}

        return Loop(step, [model, optimizer])

    assert_as_eager(make, pairs(8), replayed=6)


def test_what_is_drawn_in_the_step():
    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    @torch.no_grad()
    def then(net, loss):
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)

    assert_as_eager(partial(supervised, adam, model, then=then), pairs(8), replayed=6)


def test_the_gradient_of_an_argument():
    def make():
        model = mlp()

        def step(x):
            model(x).sum().backward()
            return x.grad.sign()

        return Loop(step, [model])

    assert_as_eager(
        make, lambda: [(torch.randn(3, 4, requires_grad=True),) for _ in range(8)], replayed=5
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [("backoff_factor", 0.125), ("growth_interval", 3)],
)
def test_settings_of_a_scaler_that_the_step_updates(setting, value):
    def make():
        model = mlp()
        optimizer = sgd(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        change = {5: lambda: getattr(scaler, f"set_{setting}")(value)}
        return Loop(step, [model, optimizer, scaler], change)

    def batches():
        found = pairs(12)()
        found[8][0][0] = torch.inf
        return found

    assert_as_eager(make, batches, replayed=7)
