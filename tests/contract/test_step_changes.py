"""``tg.step``: what a user changes in the middle of a training is in the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.functional import linear, mse_loss

from tests.cases.plays import Play, by_hand, net, pairs, sgd, trains
from tests.cases.table import Table

case = Table(fallback="eager")
Change = Callable[[nn.Module, optim.Optimizer], Any]


def changed(changes: Mapping[int, Change], make: Callable[[], nn.Module] = net) -> Play:
    """The usual loop; before a call something is done to its model or optimizer."""
    model = make()
    optimizer = sgd(model)
    before = {number: partial(change, model, optimizer) for number, change in changes.items()}
    return trains(model, optimizer=optimizer, before=before, calls=pairs(12))


def with_modes() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def trains_first(flag: bool) -> Change:
    return lambda model, _: model[0].requires_grad_(flag)


def rate(value: float) -> Change:
    return lambda _, optimizer: optimizer.param_groups[0].update(lr=value)


@torch.no_grad()
def ones(model: nn.Module, _: Any) -> None:
    for parameter in model.parameters():
        parameter.copy_(torch.ones_like(parameter))


def data(model: nn.Module, _: Any) -> None:
    model[0].weight.data = torch.ones(3, 4)


case.rows(
    {
        "rate": lambda: changed({4: rate(0.01), 6: rate(0.5)}),
        "weights": lambda: changed({5: ones}),
        "data": lambda: changed({5: data}),
        "gradients": lambda: changed({5: lambda model, _: model.zero_grad()}),
    },
    served=9,
)
case(lambda: changed({5: lambda _, one: one.state.clear()}), name="state", served=8)
case(lambda: changed({4: trains_first(False), 8: trains_first(True)}), name="thaw", served=7)
case(
    lambda: changed(
        {4: lambda model, _: model.eval(), 8: lambda model, _: model.train()}, with_modes
    ),
    name="modes",
    served=7,
)


@case(served=3)
def layers_are_thawed_one_after_the_other():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]).requires_grad_(False)
    thawing = {4 * n: partial(model[2 - n].requires_grad_, True) for n in range(3)}
    calls = [(x, x) for x, _ in pairs(12)]
    return trains(model, before=thawing, calls=calls)


def replaced(new: str) -> Play:
    """A loop in which a name of the step comes to stand for another object."""
    model = net()
    optimizer: Any = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def replace():
        nonlocal model, optimizer
        model = net() if new == "model" else model
        kind = optim.Adam if new == "kind" else optim.SGD
        optimizer = kind(model.parameters(), lr=0.01)

    return Play(step, [lambda: model, lambda: optimizer], {5: replace})


case.rows({new: partial(replaced, new) for new in ("optimizer", "kind", "model")}, served=5)


def grows(every: int) -> Play:
    """The step makes a layer: the optimizer knows parameters that this call began without."""
    model, calls = net(), [0]
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        calls[0] += 1
        if calls[0] % every == 0:
            model[-1] = nn.Linear(3, 2)
            optimizer.param_groups[0]["params"][2:] = model[-1].parameters()
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return by_hand(step, model, optimizer, watched=[calls], calls=pairs(8))


case(
    lambda: grows(1),
    name="a_layer_in_each_call",
    served=0,
    says="a parameter that the step has made",
)
case(lambda: grows(5), name="a_layer_in_one_call", served=2)


@case(served=5, programs=2)
def another_size_of_batch_has_its_own_program():
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    calls = [pairs(1, rows)[0] for rows in (3, 3, 3, 3, 5, 5, 5, 3, 5)]
    return trains(model, optimizer=optimizer, calls=calls)


# --- exceptions -----------------------------------------------------------------------------------


@case(least=2)
def a_check_of_the_user_raises_where_programs_serve_too():
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        if not loss.isfinite():
            raise KeyError
        loss.backward()
        optimizer.step()
        return loss

    calls = pairs(9)
    for number in (1, 6):
        calls[number][0].fill_(torch.nan)
    return by_hand(step, model, optimizer, calls=calls)


# --- hooks of leaves without an optimizer ---------------------------------------------------------


def accumulated(parameter: torch.Tensor) -> None:
    parameter.data.sub_(parameter.grad, alpha=0.1)
    parameter.grad = None


def hooked(kind: str, hook: Callable[[torch.Tensor], Any]) -> Play:
    """A loop over a leaf to which a hook is added, and from which it is removed."""
    handles, weight = [], torch.ones(2, 4, requires_grad=True)

    def step(x, y):
        mse_loss(linear(x, weight), y).backward()
        gradient, weight.grad = weight.grad, None
        return weight.detach().clone() if gradient is None else gradient

    come_and_go = {
        4: lambda: handles.append(getattr(weight, kind)(hook)),
        7: lambda: handles.pop().remove(),
    }
    return Play(step, [weight], come_and_go, pairs(10))


case.rows(
    {
        "hook": lambda: hooked("register_hook", lambda grad: grad * 3),
        "after": lambda: hooked("register_post_accumulate_grad_hook", accumulated),
    },
    served=6,
)


@pytest.mark.parametrize("case", case)
def test_changes(case):
    case.check()
