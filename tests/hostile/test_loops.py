"""Loops of all forms: zero_grad, accumulation, closures, several optimizers, their state."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.cases.plays import adam, by_hand, net, pairs, sgd, trains
from tests.cases.table import Table
from torchgraph.errors import UnsupportedOptimizer

case = Table("step graph", says=None)


# --- forms of the loop ----------------------------------------------------------------------------


@case
def zero_grad_in_all_forms():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad(set_to_none=False)
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        model.zero_grad()
        functional.l1_loss(model(x), y).backward()
        for parameter in model[0].parameters():
            parameter.grad.zero_()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None

    return by_hand(step, model, optimizer)


@case(forms="step")
def accumulation_by_a_counter_of_its_own():
    model, held = net(), {"number": 0}
    optimizer = adam(model)

    def step(x, y):
        (functional.mse_loss(model(x), y) / 3).backward()
        held["number"] += 1
        if held["number"] % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return by_hand(step, model, optimizer, watched=[held], calls=pairs(15))


@case
def stepped_twice():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.step()

    return by_hand(step, model, optimizer)


@case(forms="step", slow=True)
def stepped_where_the_loss_is_small():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        if loss < 1.5:
            optimizer.step()
        return loss

    return by_hand(step, model, optimizer, calls=pairs(14, rows=2))


@case
def stepped_before_backward():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        optimizer.step()
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()

    return by_hand(step, model, optimizer)


@case
def a_closure():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return by_hand(step, model, optimizer)


@case(refused=UnsupportedOptimizer)
def line_search():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return by_hand(step, model, optimizer)


@case
def two_optimizers_in_turn():
    model = net()
    first, second = sgd(model[0]), adam(model[2])

    def step(x, y):
        first.zero_grad()
        functional.mse_loss(model(x), y).backward()
        first.step()
        second.step()
        second.zero_grad()

    return by_hand(step, model, first, second)


@case(forms="step")
def two_optimizers_over_one_parameter():
    model = net()
    first, second = sgd(model), adam(model)

    def step(x, y):
        first.zero_grad()
        functional.mse_loss(model(x), y).backward()
        first.step()
        second.step()

    return by_hand(step, model, first, second)


@case
def an_optimizer_chosen_from_a_list():
    model = net()
    held = {"which": 0}
    optimizers = [sgd(model), adam(model)]

    def step(x, y):
        optimizer = optimizers[held["which"]]
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    change = {5: lambda: held.update(which=1), 9: lambda: held.update(which=0)}
    return by_hand(step, model, *optimizers, before=change, calls=pairs(12))


@case
def the_state_cleared_and_edited():
    model = net()
    optimizer = adam(model)

    def halve():
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.5)
            state["exp_avg_sq"] = state["exp_avg_sq"] * 4
            state["step"] = state["step"] - 1

    change = {5: halve, 7: optimizer.state.clear}
    return trains(model, optimizer=optimizer, before=change, calls=pairs(12))


@case
def the_state_of_one_parameter_dropped():
    model = net()
    optimizer = adam(model)
    change = {5: lambda: optimizer.state.pop(model[0].weight)}
    return trains(model, optimizer=optimizer, before=change, calls=pairs(12))


@pytest.mark.parametrize("case", case)
def test_loops(case):
    case.check()
