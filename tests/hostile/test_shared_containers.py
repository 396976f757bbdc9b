"""Containers of optimizers that several places hold: all of them see what each writes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.cases.forms import Update
from tests.cases.plays import Play, singles
from tests.cases.table import Table

case = Table("updating", least=3)


class Own(torch.optim.Optimizer):
    """``rate(self, parameter, group)`` of each parameter, then a step of SGD."""

    def __init__(self, groups: Any, rate: Callable[..., Any], **settings: Any) -> None:
        super().__init__(groups, {"lr": 0.1, **settings})
        self.rate = rate

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rate = self.rate(self, parameter, group)
                    parameter.add_(parameter.grad, alpha=-rate)


def trains(
    rate: Callable[..., Any],
    begin: Callable[[Own], Any] = lambda _: None,
    tells: Callable[[Own], Any] = lambda _: None,
    groups: Callable[[Any], Any] = lambda model: model.parameters(),
    **settings: Any,
) -> Play:
    """A loop with a scheduler; ``tells`` is asked after each call."""
    model = nn.Linear(4, 2)
    optimizer = Own(groups(model), rate, **settings)
    begin(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def build(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def told():
        return [tells(optimizer), [group["lr"] for group in optimizer.param_groups]]

    before = dict.fromkeys(range(1, 9), scheduler.step)
    return Play(Update(build, model, optimizer), [model, told], before, singles(9))


def of_states(optimizer: Own, key: str, value: Callable[[Any], Any]) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter][key] = value(group)


def first_of(optimizer: Own) -> Any:
    return optimizer.state[optimizer.param_groups[0]["params"][0]]


@case
def a_group_in_the_state():
    return trains(
        lambda self, p, _: self.state[p]["group"]["lr"],
        lambda self: of_states(self, "group", lambda group: group),
        lambda self: first_of(self)["group"] is self.param_groups[0],
    )


@case
def a_group_that_the_first_step_puts_into_the_state_and_fills():
    def rate(self, p, group):
        group.setdefault("count", torch.tensor(0))
        return self.state[p].setdefault("group", group)["lr"]

    return trains(rate, tells=lambda self: first_of(self).get("group") is self.param_groups[0])


@case
def a_group_in_itself():
    return trains(
        lambda self, p, group: group["me"]["me"]["lr"],
        lambda self: self.param_groups[0].update(me=self.param_groups[0]),
        lambda self: self.param_groups[0]["me"] is self.param_groups[0],
    )


def counts_in(find: Callable[..., Any]) -> Callable[..., Any]:
    def rate(self, p, group):
        find(self, p, group)["n"] += 1.0
        return group["lr"] / find(self, p, group)["n"]

    return rate


@case
def one_dict_in_the_states_of_two_parameters():
    shared = {"n": 0.0}
    return trains(
        counts_in(lambda self, p, _: self.state[p]["count"]),
        lambda self: of_states(self, "count", lambda _: shared),
        lambda self: [shared["n"], first_of(self)["count"] is shared],
    )


@case
def a_dict_in_two_groups_and_outside():
    shared = OrderedDict(n=0.0)

    def groups(model):
        return [{"params": [one], "count": shared} for one in model.parameters()]

    def tells(self):
        return shared["n"], [group["count"] is shared for group in self.param_groups]

    return trains(counts_in(lambda self, p, group: group["count"]), tells=tells, groups=groups)


class Settings(dict):
    """Shows its items as attributes, and cannot be made of items."""

    def __init__(self) -> None:
        super().__init__(n=0.0)

    def __getattr__(self, name: str) -> Any:
        return self[name]


@case
def a_dict_of_the_users_own_class():
    return trains(
        counts_in(lambda self, p, group: group["own"]),
        tells=lambda self: [type(self.param_groups[0]["own"]), self.param_groups[0]["own"].n],
        own=Settings(),
    )


class Pair(NamedTuple):
    one: float
    other: float


@case
def a_named_tuple_that_moves():
    def rate(self, p, group):
        group["pair"] = group["pair"]._replace(one=group["pair"].one * 0.9)
        return group["lr"] * group["pair"].one * group["pair"].other

    return trains(rate, tells=lambda self: repr(self.param_groups[0]["pair"]), pair=Pair(1.0, 0.5))


@case
def a_list_that_each_step_replaces():
    first = [1.0]
    before = [first]

    def rate(self, p, group):
        group["rates"] = [group["rates"][0] * 0.9]
        return group["lr"] * group["rates"][0]

    def tells(self):
        before.append(self.param_groups[0]["rates"])
        return first, [before[-1] is one for one in before[:-1]], before[-1]

    return trains(rate, tells=tells, rates=first)


@case
def a_window_in_place():
    def rate(self, p, group):
        window = self.state[p].setdefault("window", [0.0, 0.0])
        window.append(window.pop(0) + 1.0)
        return group["lr"] * sum(window)

    kept: list[Any] = []

    def tells(self):
        kept.append(first_of(self).get("window"))
        return [one is kept[-1] for one in kept if one is not None], kept[-1]

    return trains(rate, tells=tells)


WORDS = "becomes a list that is held elsewhere too"


@case(least=0, served=0, fallback="eager", says=WORDS)
def lists_that_change_places():
    one, other = [1.0], [2.0]

    def rate(self, p, group):
        if p.ndim == 1:
            group["one"], group["other"] = group["other"], group["one"]
            group["one"][0] *= 1.1
        return group["lr"] * group["one"][0]

    return trains(rate, tells=lambda _: [one, other], one=one, other=other)


@case(forms="step")
def a_group_of_another_optimizer():
    model = nn.Linear(4, 2)
    one = Own([model.weight], lambda self, p, group: group["lr"])
    other = Own([model.bias], lambda self, p, group: group["other"]["lr"])
    other.param_groups[0]["other"] = one.param_groups[0]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(one, 0.5)

    def step(x):
        one.zero_grad()
        other.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        one.step()
        other.step()
        return loss

    def told():
        return other.param_groups[0]["other"] is one.param_groups[0], one.param_groups[0]["lr"]

    before = dict.fromkeys(range(1, 9), scheduler.step)
    return Play(step, [model, told], before, singles(9))


@case
def a_list_that_two_places_come_to_hold_between_two_calls():
    def rate(self, p, group):
        group["one"][0] += 1.0
        group["other"][0] += 1.0
        return group["lr"] / group["one"][0] / group["other"][0]

    play = trains(
        rate, one=[1.0], other=[1.0], tells=lambda self: repr(self.param_groups[0]["one"])
    )
    groups = play.step.optimizer.param_groups
    play.before[6] = lambda: groups[0].update(one=groups[0]["other"])
    return play


@case(forms="step", least=0)
def a_step_that_fails_midway():
    failing = []

    def rate(self, p, group):
        group["count"]["n"] += 1.0
        if failing and p.ndim == 1:
            raise ValueError("midway")
        return self.state[p]["group"]["lr"] / self.state[p]["count"]["n"]

    def begin(self):
        of_states(self, "group", lambda group: group)
        of_states(self, "count", lambda group: group["count"])

    def tells(self):
        state, group = first_of(self), self.param_groups[0]
        return state["group"] is group, state["count"] is group["count"], group["count"]["n"]

    play = trains(rate, begin, tells, count={"n": 0.0})
    fails: dict[int, Callable[[], Any]] = {n: lambda: failing.append(1) for n in (0, 4)}
    play.before = {**fails, **dict.fromkeys((1, 5), failing.clear)}
    return play


class Halves(torch.optim.Optimizer):
    """Halves the gradients, and then steps another optimizer, whose groups are its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.param_groups = inner, inner.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        self.inner.step()


@case(forms="step", serves=True)
def groups_of_the_optimizer_that_another_steps():
    model = nn.Linear(4, 2)
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = Halves(inner)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, inner], dict.fromkeys(range(1, 9), scheduler.step), singles(9))


@pytest.mark.parametrize("one", case)
def test_all_places_see_one_value(one):
    one.check()


@pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")
def test_check_and_report_leave_containers_as_they_are():
    play = a_group_in_the_state()
    optimizer = play.step.optimizer
    graph = tg.step(play.step)
    graph.config.set_backend("aten")
    group = optimizer.param_groups[0]
    for number, args in enumerate(play.calls):
        play.before.get(number, lambda: None)()
        if number in (3, 6):
            graph.check(*args)
            str(graph.report())
        graph(*args)
        assert first_of(optimizer)["group"] is group is optimizer.param_groups[0]
        assert type(group["lr"]) is float
