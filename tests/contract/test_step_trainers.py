"""``tg.step`` on trainers as people have them: batches in attributes, optimizers of their own."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import torchgraph as tg
from tests.cases.plays import Play, net, singles, trains
from tests.cases.table import Table

case = Table(fallback="eager")


# --- optimizers of their own ----------------------------------------------------------------------


class Lookahead(torch.optim.Optimizer):
    """Around another optimizer, without a ``super().__init__()``, as published."""

    def __init__(self, base: torch.optim.Optimizer, every: int = 5, alpha: float = 0.5) -> None:
        self.optimizer, self.every, self.alpha = base, every, alpha
        self.param_groups, self.fast_state = base.param_groups, base.state
        self.state = collections.defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for fast in group["params"]:
                    slow = self.state[fast].setdefault("slow", fast.data.clone())
                    slow += (fast.data - slow) * self.alpha
                    fast.data.copy_(slow)
            group["counter"] = (group["counter"] + 1) % self.every
        return loss


@case(says=None)
def an_optimizer_around_another_one():
    model = net()
    return trains(model, optimizer=Lookahead(torch.optim.Adam(model.parameters())))


# --- batches in attributes ------------------------------------------------------------------------


def translates(
    give: Callable[[int], tuple[torch.Tensor, torch.Tensor]], number: int, outputs: int = 2
) -> Play:
    """``set_input`` and ``optimize_parameters`` apart, as of pix2pix; a weight moves, too."""
    model, held = nn.Linear(3, outputs), SimpleNamespace(weight=[torch.ones(outputs)])
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        held.made = model(held.a)
        optimizer.zero_grad()
        held.loss = mse_loss(held.made, held.b * held.weight[0])
        held.loss.backward()
        optimizer.step()

    def put(call: int) -> None:
        held.a, held.b = give(call)
        if call % 3 == 0:
            held.weight[0] = held.weight[0] * 0.9

    before = {call: lambda call=call: put(call) for call in range(number)}
    watched = [model, optimizer, lambda: [held.loss.detach(), held.made.detach()]]
    held.loss = held.made = torch.zeros(())
    return Play(step, watched, before, [()] * number)


def odd(how: str) -> Play:
    """A loop of which one batch has another size, other strides or a gradient."""

    def give(call):
        size = 2 if how == "size" and call == 13 else 4
        a, b = torch.randn(size, 3), torch.randn(size, 2)
        if call == 13 and how == "strides":
            a = a.t().contiguous().t()
        return a, b.requires_grad_(call == 13 and how == "leaf")

    return translates(give, 20)


case.rows({f"another_{how}": lambda how=how: odd(how) for how in ("size", "strides")}, least=12)
case(lambda: odd("leaf"), name="a_leaf", least=12)


def autoencodes(apart: int) -> Play:
    """Two names of one batch, until noise comes in."""

    def give(call):
        a = torch.randn(4, 3)
        return a + 0.1 if call >= apart else a, a

    return translates(give, 11, outputs=3)


for call in (2, 3, 7):
    name = f"apart_from_call_{call}"
    case(lambda call=call: autoencodes(call), name=name, says=None, slow=call != 3)


# --- parameters that are frozen and thawed in turn ------------------------------------------------


def by_loop(model: nn.Module, flag: bool) -> None:
    for parameter in model.parameters():
        parameter.requires_grad = flag


def gan(switch: Callable[[nn.Module, bool], Any], wrap: Callable[[Any], Any]) -> Any:
    """The steps of a critic and of a generator, and what they train."""
    torch.manual_seed(0)
    made, judge = nn.Linear(3, 4), nn.Linear(4, 1)
    makes, judges = (torch.optim.Adam(model.parameters()) for model in (made, judge))

    def critic():
        switch(judge, True)
        judges.zero_grad()
        loss = judge(made(torch.randn(4, 3)).detach()).mean() - judge(torch.randn(4, 4)).mean()
        loss.backward()
        judges.step()
        return loss

    def generator():
        switch(judge, False)
        makes.zero_grad()
        loss = -judge(made(torch.randn(4, 3))).mean()
        loss.backward()
        makes.step()
        return loss

    return wrap(critic), wrap(generator), [*made.parameters(), *judge.parameters()]


@pytest.mark.parametrize(
    ("switch", "turns"),
    [
        (nn.Module.requires_grad_, "gcc"),
        pytest.param(by_loop, "cg", marks=pytest.mark.slow),
        pytest.param(by_loop, "cccccg", marks=pytest.mark.slow),
    ],
)
def test_steps_that_freeze_in_turn_become_programs(switch, turns):
    def run(wrap):
        critic, generator, parameters = gan(switch, wrap)
        seen: list[Any] = []
        for turn in turns * 12:
            loss = critic() if turn == "c" else generator()
            grads = [None if one.grad is None else one.grad.tolist() for one in parameters]
            seen.append((loss.item(), [one.requires_grad for one in parameters], grads))
        return critic, generator, [*seen, *(one.tolist() for one in parameters)]

    critic, generator, found = run(tg.step)
    assert found == run(lambda function: function)[-1]
    for step in (critic, generator):
        calls = step.report().calls
        assert not calls.eager
        assert calls.recorded <= 7


@case(says=None)
def a_list_of_parameters_is_frozen_in_turn():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained = list(model.parameters())

    def step(x):
        for parameter in trained:
            parameter.requires_grad_(not parameter.requires_grad or parameter.ndim == 2)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    flags = [lambda: [one.requires_grad for one in trained]]
    return Play(step, [model, optimizer, *flags], calls=singles(12))


@case(says="requires_grad was")
def parameters_that_train_by_chance_are_named_once():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
    optimizer, chance = torch.optim.SGD(model.parameters(), lr=0.1), random.Random(0)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    def flip():
        for layer in list(model)[1:]:
            layer.requires_grad_(chance.random() < 0.5)

    return Play(step, [model, optimizer], dict.fromkeys(range(30), flip), singles(30))


@case(says=r"\(at ")
def a_step_that_is_recorded_again_and_again_is_not_silent():
    """Its programs serve a call or two each: more than nothing, and less than they cost."""
    model, scales = nn.Linear(4, 3), tuple(range(40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, bounds):
        optimizer.zero_grad()
        loss = model(x).sum() * scales[int(bounds[0])]
        loss.backward()
        optimizer.step()

    calls = [(x, torch.tensor([number // 4])) for number, (x,) in enumerate(singles(80))]
    return Play(step, [model, optimizer], calls=calls)


@pytest.mark.parametrize("case", case)
def test_trainers(case):
    assert case.check().called.report().calls.recorded <= 20
