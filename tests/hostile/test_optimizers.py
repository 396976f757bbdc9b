"""Optimizers: all of torch's, changed by hand, stepped oddly, and what is done between."""

from __future__ import annotations

import copy
import math
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from tests.cases.plays import adam, around_step, by_hand, net, pairs, sgd, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


def every(name, **options: Any):
    """A case of an optimizer of torch.optim, whose state is loaded and whose rate moves."""

    def make():
        model = net()
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        state = copy.deepcopy(optimizer.state_dict())
        change = {5: lambda: optimizer.param_groups[0].update(lr=0.03)}
        if name != "LBFGS":
            change[7] = lambda: optimizer.load_state_dict(copy.deepcopy(state))
        return trains(model, optimizer=optimizer, before=change, calls=pairs(11))

    make.__name__ = "_".join([name, *(f"{key}_{value}" for key, value in options.items())])
    case(make)


for name in ("ASGD", "RAdam", "Rprop"):
    every(name)
every("SGD", momentum=0.9, nesterov=True)
every("Adam", foreach=True)
every("Adam", fused=True)
every("Adafactor")


# --- numbers of the groups ------------------------------------------------------------------------


@case
def a_rate_that_is_a_tensor():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.05))
    change = {5: lambda: optimizer.param_groups[0]["lr"].fill_(0.5)}
    return trains(model, optimizer=optimizer, before=change)


@case
def a_rate_that_becomes_a_tensor():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    change = {5: lambda: optimizer.param_groups[0].update(lr=torch.tensor(0.5))}
    return trains(model, optimizer=optimizer, before=change)


@case
def numbers_of_a_group_one_by_one():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    group = optimizer.param_groups[0]
    change = {
        4: lambda: group.update(betas=(0.5, 0.9)),
        5: lambda: group.update(weight_decay=0.3),
        6: lambda: group.update(eps=0.1),
        7: lambda: group.update(maximize=True),
        9: lambda: group.update(amsgrad=True),
    }

    def amsgrad():
        group.update(amsgrad=True)
        for state in optimizer.state.values():
            state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"])

    change[9] = amsgrad
    return trains(model, optimizer=optimizer, before=change, calls=pairs(14))


@case
def momentum_that_becomes_zero():
    model = net()
    optimizer = sgd(model)
    group = optimizer.param_groups[0]
    change = {5: lambda: group.update(momentum=0.0), 8: lambda: group.update(momentum=0.5)}
    return trains(model, optimizer=optimizer, before=change, calls=pairs(12))


@case
def a_rate_of_zero_and_of_nan():
    model = net()
    optimizer = adam(model)
    group = optimizer.param_groups[0]
    change = {4: lambda: group.update(lr=0.0), 6: lambda: group.update(lr=math.nan)}
    return trains(model, optimizer=optimizer, before=change)


@case
def the_group_set_in_the_step():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.step()
        return loss

    return by_hand(step, model, optimizer)


@case
def a_rate_read_in_the_step():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y) * (1 + optimizer.param_groups[0]["lr"])
        loss.backward()
        optimizer.step()
        return loss

    change = {5: lambda: optimizer.param_groups[0].update(lr=0.5)}
    return by_hand(step, model, optimizer, before=change)


@case
def a_rate_that_depends_on_the_loss():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, loss.item())
        optimizer.step()
        return loss

    return by_hand(step, model, optimizer, calls=pairs(14))


@case
def groups_added_and_removed():
    model, other = net(), nn.Linear(4, 2)
    optimizer = sgd(model)
    change = {
        5: lambda: optimizer.add_param_group({"params": list(other.parameters()), "lr": 0.3}),
        8: lambda: optimizer.param_groups.pop(0),
    }
    loss = lambda x, y: (model(x) + other(x) - y).square().mean()  # noqa: E731
    return trains(model, loss, optimizer, before=change, calls=pairs(12), watched=[other])


# --- schedulers -----------------------------------------------------------------------------------


def scheduled(make, stepped=lambda schedule, loss: schedule.step(), inside=True):
    """The rate of `sgd` moves, in the step or outside of it."""
    model = net()
    optimizer = sgd(model)
    schedule = make(optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if inside:
            stepped(schedule, loss)
        return loss

    play = by_hand(step, model, optimizer, watched=[schedule], calls=pairs(11))
    if not inside:
        play.before = dict.fromkeys(range(1, 11), schedule.step)
    return play


@case
def a_sequence_of_schedulers():
    def make(one):
        parts = [lr_scheduler.ConstantLR(one, 0.1, 3), lr_scheduler.ExponentialLR(one, 0.5)]
        return lr_scheduler.SequentialLR(one, parts, [4])

    return scheduled(make)


@case
def on_a_plateau():
    def stepped(schedule, loss):
        schedule.step(loss)

    return scheduled(lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0), stepped)


@case(slow=True)
def on_a_plateau_by_a_number():
    def stepped(schedule, loss):
        schedule.step(loss.item())

    return scheduled(lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0), stepped)


@case
def cyclic_momentum_outside():
    return scheduled(lambda one: lr_scheduler.CyclicLR(one, 0.1, 0.5, 3), inside=False)


@case
def a_lambda_that_reads_a_variable():
    held = {"factor": 1.0}
    play = scheduled(
        lambda one: lr_scheduler.LambdaLR(one, lambda epoch: held["factor"] / (1 + epoch))
    )
    play.before = {6: lambda: held.update(factor=5.0)}
    return play


@case(slow=True)
def a_scheduler_every_third_step():
    model = net()
    optimizer = sgd(model)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    held = {"number": 0}

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        held["number"] += 1
        if held["number"] % 3 == 0:
            schedule.step()
        return loss

    return by_hand(step, model, optimizer, watched=[schedule, held], calls=pairs(14))


@case
def two_schedulers_on_one_optimizer():
    model = net()
    optimizer = sgd(model)
    first = lr_scheduler.ExponentialLR(optimizer, 0.9)
    second = lr_scheduler.StepLR(optimizer, 3)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        first.step()
        second.step()
        return first.get_last_lr()[0]

    return by_hand(step, model, optimizer, watched=[first, second])


@case(slow=True)
def a_scheduler_replaced():
    model = net()
    optimizer = sgd(model)
    held = {"schedule": lr_scheduler.ExponentialLR(optimizer, 0.9)}

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        held["schedule"].step()

    def replace():
        held["schedule"] = lr_scheduler.StepLR(optimizer, 2)

    return by_hand(step, model, optimizer, watched=[held], before={5: replace}, calls=pairs(11))


@case
def a_scheduler_by_its_bound_method():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2))
    schedule = lr_scheduler.StepLR(optimizer, 3, 0.5)
    return around_step(model, optimizer, schedule.step, watched=[schedule])


class Mean(torch.optim.Optimizer):
    """By the mean of the last gradients, which it keeps for each parameter under one name."""

    def __init__(self, params: Any, kind: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.kind = kind

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                kept = self.state[weight].setdefault("kept", self.kind())
                if isinstance(kept, SimpleNamespace):
                    kept.last = weight.grad + 0.5 * getattr(kept, "last", 0.0)
                    weight.sub_(group["lr"] * kept.last)
                else:
                    kept.append(weight.grad.clone())
                    weight.sub_(group["lr"] * torch.stack(list(kept)).mean(0))


@case(forms="step")  # in eager: what moves within a deque of a slot is no input yet
def last_gradients_in_deques():
    model = net()
    made = partial(deque, maxlen=3)
    return trains(model, optimizer=Mean(model.parameters(), made), calls=pairs(12))


@case(forms="step")
def last_gradients_in_attributes():
    model = net()
    return trains(model, optimizer=Mean(model.parameters(), SimpleNamespace), calls=pairs(12))


@pytest.mark.parametrize("case", case)
def test_optimizers(case):
    case.check()
