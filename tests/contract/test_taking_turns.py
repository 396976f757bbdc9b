"""Two steps in turn that freeze and thaw the same parameters: the flags are part of the state."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import EagerWarning

Switch = Callable[[nn.Module, bool], Any]


def by_loop(net: nn.Module, flag: bool) -> None:
    for parameter in net.parameters():
        parameter.requires_grad = flag


def by_module(net: nn.Module, flag: bool) -> None:
    net.requires_grad_(flag)


class Gan:
    """A generator and a critic, trained in turn; ``wrap`` makes the two steps."""

    def __init__(self, switch: Switch, wrap: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        made, judge = nn.Linear(3, 4), nn.Linear(4, 1)
        makes, judges = (torch.optim.Adam(net.parameters()) for net in (made, judge))
        self.parameters = [*made.parameters(), *judge.parameters()]

        def critic(x):
            switch(judge, True)
            judges.zero_grad()
            loss = judge(made(torch.randn(4, 3)).detach()).mean() - judge(x).mean()
            loss.backward()
            judges.step()
            return loss

        def generator(z):
            switch(judge, False)
            makes.zero_grad()
            loss = -judge(made(z)).mean()
            loss.backward()
            makes.step()
            return loss

        self.critic, self.generator = wrap(critic), wrap(generator)

    def run(self, turns: str, count: int) -> list[Any]:
        seen: list[Any] = []
        for _ in range(count):
            for turn in turns:
                loss = self.critic(torch.randn(4, 4)) if turn == "c" else None
                loss = self.generator(torch.randn(4, 3)) if loss is None else loss
                flags = [parameter.requires_grad for parameter in self.parameters]
                grads = [parameter.grad for parameter in self.parameters]
                grads = [None if grad is None else grad.tolist() for grad in grads]
                seen.append((loss.item(), flags, grads))
        return [*seen, *(parameter.tolist() for parameter in self.parameters)]


@pytest.mark.parametrize(
    ("switch", "turns"), [(by_loop, "cg"), (by_module, "gcc"), (by_loop, "cccccg")]
)
def test_steps_that_freeze_in_turn_become_programs(switch: Switch, turns: str) -> None:
    ours = Gan(switch, tg.step)
    assert ours.run(turns, 12) == Gan(switch, lambda function: function).run(turns, 12)
    for step in (ours.critic, ours.generator):
        report = step.report()
        assert not report.calls.eager
        assert report.calls.recorded <= 7


def test_a_list_of_parameters_is_frozen_in_turn() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        trained = list(net.parameters())

        def step(x):
            for parameter in trained:
                parameter.requires_grad_(not parameter.requires_grad or parameter.ndim == 2)
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

        step, seen = wrap(step), []
        for _ in range(12):
            step(torch.randn(4, 3))
            seen.append([(p.requires_grad, p.tolist()) for p in trained])
        return seen

    assert run(tg.step) == run(lambda function: function)


def test_parameters_that_train_by_chance_are_named_once() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(8)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    chance = random.Random(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(40):
            for layer in list(net)[1:]:
                layer.requires_grad_(chance.random() < 0.5)
            step(torch.randn(4, 3))
    said = [str(one.message) for one in caught if issubclass(one.category, EagerWarning)]
    assert len(said) == 1
    assert "requires_grad was" in said[0]
    assert step.report().calls.recorded < 20


def test_a_step_that_is_recorded_again_and_again_is_not_silent() -> None:
    """Its programs serve a call or two each: more than nothing, and less than they cost."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scales = tuple(range(40))

    @tg.step
    def step(x, bounds):
        optimizer.zero_grad()
        loss = net(x).sum() * scales[int(bounds[0])]
        loss.backward()
        optimizer.step()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in range(80):
            step(torch.randn(4, 3), torch.tensor([call // 4]))
    said = [str(one.message) for one in caught if issubclass(one.category, EagerWarning)]
    assert len(said) == 1
    assert "(at " in said[0]
    assert step.report().calls.recorded <= 20
