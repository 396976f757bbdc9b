"""Optimizers that users write, in steps that take their own updates, or that a Graph takes."""

import copy
from collections import deque
from decimal import Decimal
from typing import Any

import pytest
import torch

import torchgraph as tg
from tests.parity.idioms_optimizers import (
    CountsInPython,
    CountsInState,
    Each,
    Grafts,
    LateSharedCounter,
    StateInGroups,
)
from tests.parity.models import Mlp, batches, cross_entropy
from torchgraph.errors import UnsupportedOptimizer
from torchgraph.testing import Setup, assert_parity, counters


class Whole(tg.Graph):
    """A step whose updates the Graph takes."""

    def __init__(self, model, *optimizers: Any, scheduler=None):
        super().__init__()
        self.model = model
        for optimizer in optimizers:
            self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, x, y):
        loss = cross_entropy(self.model, x, y)
        loss.backward()
        return loss


def own(model, *optimizers: Any, scheduler=None, cleared=None):
    """A step that takes its own updates."""

    def step(x, y):
        for optimizer in (cleared,) if cleared else optimizers:
            optimizer.zero_grad()
        loss = cross_entropy(model, x, y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return loss.detach()

    return step


def of_each(model):
    adam = torch.optim.AdamW(model.first.parameters(), lr=0.05)
    return adam, torch.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9)


class Wraps(torch.optim.Optimizer):
    """The groups and the state are those of another optimizer, whose step is a part of its own."""

    def __init__(self, params):
        self.inner = torch.optim.AdamW(params, lr=0.1)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.state = self.inner.state

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * 0.01)
        self.inner.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.sign(), alpha=-group["lr"] * 0.1)
            group["lr"] *= 0.99


def changes(number, optimizer):
    if number == 6:
        optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.param_groups[0]["weight_decay"] = 0.1


def loads(number, optimizer):
    if number == 5:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def plainly(step):
    """By ``tg.step``: what fails is made again in eager, and no more is looked at."""
    made = tg.step(step)
    made.config.set_look_again("off")
    made.config.set_fallback("eager")
    return made


class AsksForPythonsOwn(Each, kept=2):
    """Hands numbers to C code that takes an int or a float alone, after it has begun."""

    steps = 0

    def begin(self, group):
        self.steps += 1

    def move(self, p, group):
        state = self.state[p]
        state["step"] = state.get("step", 0) + 1
        p.grad.add_(torch.rand_like(p), alpha=0.1)
        p.mul_(0.99)
        rate = float(Decimal(group["lr"]))
        state["rates"] = deque(state.get("rates", ()), maxlen=group["kept"])
        p.add_(p.grad, alpha=-rate / state["step"])


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def trained(form, make, before, schedule, held):
    """Losses, and what the optimizers hold, of ten steps in a form; the programs it has."""
    torch.manual_seed(0)
    model = Mlp()
    optimizers = make(model)
    optimizers = optimizers if isinstance(optimizers, tuple) else (optimizers,)
    scheduler = schedule and schedule(optimizers[0])
    if form is Whole:
        step = Whole(model, *optimizers, scheduler=scheduler)
    else:
        step = form(own(model, *optimizers, scheduler=scheduler, cleared=held and held(optimizers)))
    torch.manual_seed(3)
    found = []
    for number, batch in enumerate(batches(Mlp, 10)):
        before(number, optimizers[0])
        found.append((step(*batch).item(), optimizers[0].param_groups[0]["lr"]))
    for optimizer in optimizers:
        optimizer.zero_grad()
        found.append((str(optimizer.state_dict()), getattr(optimizer, "steps", 0)))
    return found, [parameter.tolist() for parameter in model.parameters()]


def row(kind, form, replays=None, before=lambda *_: None, schedule=None, held=None):
    make = kind if kind is of_each else lambda model: kind(model.parameters())
    return make, form, replays, before, schedule, held


ROWS = {
    "counts in Python": row(CountsInPython, tg.step, 7),
    "a shared counter": row(LateSharedCounter, tg.step, 7),
    "state in groups": row(StateInGroups, tg.step, 8),
    "a wrapped one": row(Wraps, tg.step, 7, changes),
    "a wrapped one that the step names": row(
        Wraps, tg.step, 8, changes, held=lambda optimizers: optimizers[0].inner
    ),
    "objects, loaded in the middle": row(Grafts, plainly, 5, loads),
    "a tensor in the state, loaded in the middle": row(CountsInState, plainly, 8, loads),
    "Python's own numbers": row(AsksForPythonsOwn, tg.step, schedule=halved),
    "Python's own numbers, of a Graph": row(AsksForPythonsOwn, Whole, schedule=halved),
    "two, each with its parameters": row(of_each, Whole, 7),
}
"""Optimizer, form, and the steps of ten that programs serve; None: not looked at."""


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize("name", ROWS)
def test_ten_steps_are_eagers(name):
    make, form, replays, *how = ROWS[name]
    expected = trained(lambda step: step, make, *how)
    before = counters.replays
    assert trained(form, make, *how) == expected
    assert replays in (None, counters.replays - before)


class NeedsClosure(Each):
    def step(self, closure):
        closure()


def test_a_step_that_is_not_taken_changes_nothing():
    model = Mlp()
    step = Whole(model, NeedsClosure(model.parameters()))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(UnsupportedOptimizer, match="closure"):
        step(*batches(Mlp, 1)[0])
    assert all(map(torch.equal, model.parameters(), before))


def test_a_setup_without_an_optimizer_only_evaluates():
    assert_parity(lambda: Setup(Mlp(), None, cross_entropy), batches(Mlp, 6))
