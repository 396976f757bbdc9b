"""Tensors that are kept from call to call with what they were computed from."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests.cases.plays import Play, net, pairs, sgd, singles
from tests.cases.table import Case, Table
from tests.support import thinned
from torchgraph.errors import NoProgram, UnsupportedInput, UnsupportedOutput

case = Table("step graph", says=None)


def every(period: int, number: int = 15) -> list[tuple[Any, ...]]:
    """A batch, and whether this call updates."""
    return [(torch.randn(5, 4), n % period == period - 1) for n in range(number)]


def updates(model, optimizer, loss):
    """One update."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# --- one backward() over several calls ------------------------------------------------------------


def summed_in_a_dict(period):
    """The loss of some calls, a number at first."""
    model = net()
    optimizer, total = sgd(model), {"loss": 0.0}

    def step(x, last):
        total["loss"] = total["loss"] + model(x).pow(2).mean()
        if last:
            updates(model, optimizer, total["loss"])
            total["loss"] = 0.0

    return Play(step, [model, optimizer], calls=every(period))


def without_saved_tensors(period):
    """Nothing in the history can be freed, and calls with one signature find more or less of it."""
    weight = nn.Parameter(torch.randn(4))
    optimizer, loss = torch.optim.SGD([weight], 0.1), torch.zeros(())

    def step(x, last):
        nonlocal loss
        loss = loss + (weight + x).sum()
        if last:
            updates(None, optimizer, loss)
            loss = torch.zeros(())

    calls = every(period, 24)
    calls[13:] = [(x, n % 2 == 0) for n, (x, _) in enumerate(calls[13:])]
    return Play(step, [weight, optimizer], calls=calls)


def a_hidden_state(period):
    """Truncated backpropagation through time, over calls."""
    cell = nn.RNNCell(4, 3)
    optimizer, state = sgd(cell), {"h": torch.zeros(5, 3)}

    def step(x, last):
        state["h"] = cell(x, state["h"])
        if last:
            updates(cell, optimizer, state["h"].pow(2).mean())
            state["h"] = state["h"].detach()

    return Play(step, [cell, optimizer], calls=every(period))


def checkpointed(period):
    """What hooks of saved tensors hold."""
    model = net()
    optimizer, total = sgd(model), {"loss": 0.0}

    def step(x, last):
        found = checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
        total["loss"] = total["loss"] + found.pow(2).mean()
        if last:
            updates(model, optimizer, total["loss"])
            total["loss"] = 0.0

    return Play(step, [model, optimizer], calls=every(period))


def the_update_elsewhere(period):
    """The step only collects; the loop itself updates."""
    model = net()
    optimizer, saved = sgd(model), []

    def collect(x):
        saved.append(model(x).pow(2).mean())

    def update():
        weight = model[0].weight
        updates(model, optimizer, sum(saved) + 0.01 * weight.pow(2).sum())
        saved.clear()

    before = dict.fromkeys(range(period, 12, period), update)
    return Play(collect, [model, optimizer], before, singles(12))


def added_in_place(period):
    """To a tensor that stays."""
    model = net()
    optimizer, total = sgd(model), torch.zeros(())

    def step(x, last):
        total.add_(model(x).pow(2).mean())
        if last:
            updates(model, optimizer, total)
            total.detach_().zero_()

    return Play(step, [model, optimizer], calls=every(period))


def added_to_a_buffer(period):
    """In place, which the module keeps."""
    model = net()
    model.register_buffer("total", torch.zeros(()))
    optimizer = sgd(model)

    def step(x, last):
        model.total += model[:3](x).pow(2).mean()
        if last:
            updates(model, optimizer, model.total)
            model.total.detach_().zero_()

    return Play(step, [model, optimizer], calls=every(period))


def rows_of_a_table(period):
    """As storages of what was played are filled."""
    model = net()
    optimizer, table = sgd(model), {"values": torch.zeros(4)}

    def step(x, number):
        table["values"][number] = model(x).pow(2).mean()
        if number == period - 1:
            updates(model, optimizer, table["values"].sum())
            table["values"] = torch.zeros(4)

    calls = [(x, n % period) for n, (x, _) in enumerate(every(period))]
    return Play(step, [model, optimizer], calls=calls)


def gradients_of_gradients(period):
    """``.grad`` itself has a history, which the loop goes through."""
    model = net()
    parameters = list(model.parameters())

    def step(x):
        model.zero_grad()
        model(x).pow(2).mean().backward(create_graph=True)

    def update():
        moved = sum(one.grad.pow(2).sum() for one in parameters) + parameters[0].sum()
        with torch.no_grad():
            for one, slope in zip(parameters, torch.autograd.grad(moved, parameters), strict=True):
                one -= 0.1 * slope
        model.zero_grad()  # else the history holds itself

    before = dict.fromkeys(range(1, 12, period - 1), update)
    return Play(step, [model], before, singles(12))


def into_an_argument(period):
    """The caller's own tensor is written."""
    model = net()
    optimizer = sgd(model)
    calls = [(x, torch.zeros(5, 2)) for (x,) in singles(12)]

    def step(x, out):
        out.copy_(model(x))

    def update(out):
        updates(model, optimizer, out.pow(2).mean() + model[0].weight.pow(2).sum())

    before = {n: partial(update, calls[n - 1][1]) for n in range(1, 12)}
    return Play(step, [model, optimizer], before, calls)


def a_function_of_what_it_saw(period):
    """It holds a tensor, which no program can reach."""
    model = net()
    optimizer, later = sgd(model), {}

    def step(x):
        found = model(x)
        later["loss"] = lambda: found.pow(2).mean()

    def update():
        updates(model, optimizer, later["loss"]())

    return Play(step, [model, optimizer], dict.fromkeys(range(1, 12), update), singles(12))


ACROSS = (
    added_in_place,
    gradients_of_gradients,
    into_an_argument,
    a_function_of_what_it_saw,
    the_update_elsewhere,
    added_to_a_buffer,
    rows_of_a_table,
    summed_in_a_dict,
    without_saved_tensors,
    a_hidden_state,
    checkpointed,
)


@pytest.mark.parametrize("period", thinned([2, 3, 4], keep=[3]))
@pytest.mark.parametrize("make", thinned(ACROSS, keep=ACROSS[:5]))
def test_one_backward_over_several_calls(make, period):
    """Never a program, eager's numbers; hidden in a function, an error without the fallback."""

    def play():
        return make(period)

    if make is a_function_of_what_it_saw:
        Case(play, says=None, refused=NoProgram).check()
        return
    for fallback in ("error", "eager"):
        Case(play, says=None, fallback=fallback, served=0).check()


# --- what a backward() has freed ------------------------------------------------------------------


@case(forms="step", serves=True)
def losses_logged_after_the_update():
    model = net()
    optimizer, log = sgd(model), []

    def step(x, y):
        loss = functional.mse_loss(model(x), y)
        updates(model, optimizer, loss)
        log.append(loss)

    return Play(step, [model, optimizer, log], calls=pairs())


@case(forms="step", serves=True)
def activations_in_attributes():
    class Shown(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = net(), None

        def forward(self, x):
            self.seen = torch.softmax(self.inner(x), -1)
            return self.seen

    model = Shown()
    optimizer = sgd(model)

    def step(x, y):
        updates(model, optimizer, functional.mse_loss(model(x), y))

    return Play(step, [model, optimizer, lambda: model.seen], calls=pairs())


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 5])
def test_backward_into_a_result_is_an_error(calls):
    """At any call, recorded or not: other terms of the loss do not hide it."""
    model = net()
    forward = tg.step(lambda x: {"found": model(x)})
    for _ in range(calls):
        found = forward(torch.randn(5, 4))["found"]
    loss = found.pow(2).mean() + 0.01 * model[0].weight.pow(2).sum()
    with pytest.raises(UnsupportedOutput, match="call backward\\(\\) in that step"):
        loss.backward()
    found.add_(1)  # as in eager
    assert found.requires_grad
    assert not found.detach().requires_grad


def test_a_result_with_a_history_is_no_argument():
    """As any tensor with one."""
    model = net()
    forward, other = tg.step(model.forward), tg.step(lambda h: h.sum())
    found = forward(torch.randn(5, 4))
    with pytest.raises(UnsupportedInput, match="detach"):
        other(found)
    other(found.detach())


def test_results_without_gradients_have_no_history():
    """Nor do losses that backward() has gone through."""
    model = net()
    optimizer = sgd(model)

    @tg.step
    def step(x):
        loss = model(x).pow(2).mean()
        updates(model, optimizer, loss)
        return loss

    forward = tg.step(model.forward)
    for _ in range(4):
        assert not step(torch.randn(5, 4)).requires_grad
        with torch.no_grad():
            assert not forward(torch.randn(5, 4)).requires_grad


@pytest.mark.parametrize("case", case)
def test_histories(case):
    """In eager and as a program."""
    case.check()
