"""Optimizers that the step makes itself: for one call, for copies of the model, or to stay."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, lr_scheduler

from tests.cases.plays import Play, net, pairs
from tests.cases.table import Table

case = Table(least=5)


def repeated(number: int, model: nn.Module, optimizer: Any, x: Any, y: Any) -> torch.Tensor:
    """So many steps on one batch."""
    for _ in range(number):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.detach()


def anew(number: int, kind: Any, **options: Any) -> Play:
    """The step makes its optimizer, and takes ``number`` steps with it."""
    model = net()

    def step(x, y):
        return repeated(number, model, kind(model.parameters(), lr=0.1, **options), x, y)

    return Play(step, [model])


case.rows(
    {
        "sgd": lambda: anew(1, SGD),
        "sgd_with_momentum": lambda: anew(3, SGD, momentum=0.9),
        "adam": lambda: anew(2, Adam, amsgrad=True),
        "adam_of_many": lambda: anew(2, AdamW, foreach=True),
        "adam_fused": lambda: anew(2, Adam, fused=True),
    },
    recorded=1,
)


@case(recorded=1)
def for_copies_of_the_model():
    model = net()

    def step(x, y):
        kept = []
        for factor in (1, 2):
            one = copy.deepcopy(model)
            repeated(2, one, SGD(one.parameters(), lr=0.1, momentum=0.9), x * factor, y)
            kept.append(one.state_dict())
        model.load_state_dict({name: (kept[0][name] + kept[1][name]) / 2 for name in kept[0]})

    return Play(step, [model])


@case
def inside_of_one_that_stays():
    model = net()
    outer = Adam(model.parameters(), lr=0.01)

    def step(x, y):
        one = copy.deepcopy(model)
        loss = repeated(2, one, SGD(one.parameters(), lr=0.1), x, y)
        for parameter, moved in zip(model.parameters(), one.parameters(), strict=True):
            parameter.grad = (parameter - moved).detach()
        outer.step()
        return loss

    return Play(step, [model, outer])


@case
def for_an_input():
    model = net()

    def step(x, y):
        change = torch.zeros_like(x, requires_grad=True)
        optimizer = SGD([change], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            functional.mse_loss(model(x + change), y).neg().backward()
            optimizer.step()
        model.zero_grad()
        return change.detach()

    return Play(step, [model])


@case(recorded=1)
def with_a_scheduler():
    model = net()

    def step(x, y):
        optimizer = SGD(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            loss = repeated(1, model, optimizer, x, y)
            scheduler.step()
        return loss

    return Play(step, [model])


@case(least=4)
def with_a_rate_that_moves():
    model, held = net(), SimpleNamespace(rate=0.1)

    def step(x, y):
        held.rate *= 0.9
        return repeated(1, model, Adam(model.parameters(), lr=held.rate), x, y)

    return Play(step, [model, held])


@case(least=3, says=None)
def once_and_kept():
    model, held = net(), SimpleNamespace(optimizer=None)

    def step(x, y):
        if held.optimizer is None:
            held.optimizer = Adam(model.parameters(), lr=0.1)
        return repeated(1, model, held.optimizer, x, y)

    return Play(step, [model, lambda: held.optimizer and held.optimizer.state_dict()])


@case(least=0, says="it has a new optimizer \\(Adam\\): make it once")
def in_each_call_and_kept():
    model, held = net(), SimpleNamespace(optimizer=None)

    def step(x, y):
        held.optimizer = Adam(model.parameters(), lr=0.1)
        return repeated(1, model, held.optimizer, x, y)

    watched = [model, lambda: held.optimizer and held.optimizer.state_dict()]
    return Play(step, watched, calls=pairs(12))


@pytest.mark.parametrize("case", case)
def test_same(case):
    case.check()
