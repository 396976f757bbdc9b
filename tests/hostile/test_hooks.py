"""Hooks that come, go and read numbers; optimizers and schedulers that are patched."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cases.plays import Play, net, pairs, sgd, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- hooks ----------------------------------------------------------------------------------------


@case
def a_forward_hook_added_and_removed():
    model, hooks = net(), []
    change = {
        4: lambda: hooks.append(model[0].register_forward_hook(lambda m, args, out: out * 2)),
        6: lambda: hooks.pop().remove(),
    }
    return trains(model, before=change, calls=pairs(12))


@case(slow=True)
def a_backward_hook():
    model = net()
    change = {5: lambda: model[0].register_full_backward_hook(lambda m, gi, go: (gi[0],))}
    return trains(
        model,
        before={
            **change,
            7: lambda: model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
        },
        calls=pairs(11),
    )


@case
def a_hook_on_a_parameter():
    model, hooks = net(), []
    change = {
        4: lambda: hooks.append(model[0].weight.register_hook(lambda grad: grad * 2)),
        6: lambda: hooks.pop().remove(),
    }
    return trains(model, before=change, calls=pairs(12))


@case
def a_step_hook_that_reads_a_number():
    model, held = net(), SimpleNamespace(by=1.0)
    optimizer = sgd(model)

    def hook(*_: object):
        for one in model.parameters():
            one.grad.mul_(held.by)

    optimizer.register_step_pre_hook(hook)
    return trains(model, optimizer=optimizer, before={5: lambda: setattr(held, "by", 3.0)})


@case(forms="step")
def a_hook_after_accumulation():
    model, hooks = net(), []

    def hook(parameter):
        parameter.data.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    def step(x, y):
        functional.mse_loss(model(x), y).backward()

    change = {
        4: lambda: hooks.append(model[0].weight.register_post_accumulate_grad_hook(hook)),
        7: lambda: hooks.pop().remove(),
    }
    return Play(step, [model], change, pairs(12))


@case
def a_hook_on_every_module():
    numbers = iter(range(99))
    model = net()

    def around(call):
        if next(numbers) < 5:
            return call()
        hook = nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
        try:
            return call()
        finally:
            hook.remove()

    play = trains(model)
    play.around = around
    return play


@case
def a_hook_that_removes_itself():
    model, hooks = net(), []

    def hook(module, args, out):
        hooks.pop().remove()
        return out * 2

    def add():
        hooks.append(model[0].register_forward_hook(hook))

    return trains(model, before={0: add, 6: add}, calls=pairs(12))


# --- optimizers -----------------------------------------------------------------------------------


@case
def zero_grad_patched():
    model = net()
    optimizer = sgd(model)
    change = {5: lambda: setattr(optimizer, "zero_grad", lambda: None)}
    return trains(model, optimizer=optimizer, before=change, calls=pairs(10))


@case
def step_of_a_scheduler_patched():
    model = net()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()

    def patched():
        optimizer.param_groups[0]["lr"] = 0.01

    return Play(step, [model, optimizer], {5: lambda: setattr(schedule, "step", patched)})


@pytest.mark.parametrize("case", case)
def test_hooks(case):
    case.check()
