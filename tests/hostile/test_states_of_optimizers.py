"""What optimizers keep besides dicts of slots: under keys of their own, functions, mixed kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles
from tests.cases.table import Table
from tests.hostile.test_shared_containers import Own, trains

case = Table("updating", least=5)


def told(optimizer: Own) -> list[Any]:
    """What is under keys that are no parameters, and what is there for the first parameter."""
    own = {key: value for key, value in optimizer.state.items() if type(key) is not nn.Parameter}
    first = optimizer.state.get(optimizer.param_groups[0]["params"][0])
    return [own, first]


def adds(self, p, group):
    self.state["k"].add_(p.grad.norm())
    p.mul_(1 / (1 + self.state["k"]))
    return group["lr"]


def moves_inside(self, p, group):
    self.state["k"][0] += 1
    self.state["k"][1].add_(1)
    return group["lr"] / self.state["k"][0]


def begins(value: Any) -> Any:
    return lambda self: self.state.update(k=value)


case(lambda: trains(adds, begins(torch.zeros(())), told), name="a tensor of the whole optimizer")
case(lambda: trains(moves_inside, begins([0, torch.zeros(2)]), told), name="a list of both kinds")


@case
def a_number_of_the_whole_optimizer():
    def rate(self, p, group):
        self.state["k"] += 1
        return group["lr"] / self.state["k"]

    return trains(rate, begins(0), told)


@case
def keys_that_read_the_same():
    def rate(self, p, group):
        self.state[0] += 1.0
        return group["lr"] / self.state[0] * self.state["0"]

    return trains(rate, lambda self: self.state.update({0: 0.0, "0": 5.0}), told)


@case
def a_number_for_each_parameter():
    def rate(self, p, group):
        self.state[p] = self.state.get(p, 0) + 1
        return group["lr"] / self.state[p]

    return trains(rate, tells=told)


@case
def a_tensor_for_each_parameter_that_each_step_replaces():
    def rate(self, p, group):
        self.state[p] = self.state.get(p, 0) * 0.9 + p.grad
        p.grad.copy_(self.state[p])
        return group["lr"]

    return trains(rate, tells=told)


@case(least=3)
def a_ratio_that_is_once_a_number_and_once_a_tensor():
    def rate(self, p, group):
        norm, gradient = p.norm(), p.grad.norm()
        trust = 1.0 if norm == 0 else norm / gradient
        self.state[p]["trust"] = trust
        p.grad.mul_(trust)
        return group["lr"]

    def begin(self):
        torch.nn.init.zeros_(self.param_groups[0]["params"][1])

    return trains(rate, begin, told)


@case
def a_number_for_one_parameter_and_a_tensor_for_another():
    def rate(self, p, group):
        state = self.state[p]
        state["v"] = state.get("v", 0.0) + (1.0 if p.ndim == 1 else p.grad)
        p.grad.mul_(state["v"])
        return group["lr"]

    return trains(rate, tells=told)


class Scaled:
    def __init__(self) -> None:
        self.by = 0.5

    def at(self, count: int) -> float:
        return self.by / count


@case
def functions_in_a_group():
    def rate(self, p, group):
        group["count"] += 1
        return group["lr"] * group["one"](group["count"]) * group["other"](group["count"])

    return trains(rate, one=lambda count: 1 / count, other=partial(pow, 2.0), count=0)


@case
def a_bound_method_that_each_step_gets_anew():
    scaled = Scaled()

    def rate(self, p, group):
        self.state[p]["at"] = scaled.at
        self.state[p]["count"] = self.state[p].get("count", 0) + 1
        return group["lr"] * self.state[p]["at"](self.state[p]["count"])

    return trains(rate)


@case(forms="step", slow=True, least=0, served=0, says="another object at optimizer.0.state.*.at")
def a_function_that_each_step_makes():
    def rate(self, p, group):
        self.state[p]["at"] = lambda: 0.5
        return group["lr"] * self.state[p]["at"]()

    play = trains(rate)
    play.calls = singles(20)
    return play


@case(forms="step updating", least=4)
def a_model_that_grows_in_its_first_call():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3)
            self.last: Any = None

        def forward(self, x):
            if self.last is None:
                self.last = nn.Linear(3, 2)
                optimizer.add_param_group({"params": [*self.last.parameters()]})
            return self.last(self.first(x))

    play = trains(lambda self, p, group: group["lr"])
    net = Net()
    optimizer = Own(net.parameters(), lambda self, p, group: group["lr"])

    def build(x):
        loss = net(x).square().mean()
        loss.backward()
        return loss

    step: Any = play.step
    return Play(step._replace(build=build, model=net, optimizer=optimizer), [net], {}, singles(9))


@case
def a_group_that_the_optimizer_itself_adds():
    def rate(self, p, group):
        if len(self.param_groups) == 1:
            self.add_param_group({"params": [extra], "initial_lr": 0.1})
        return group["lr"]

    extra = nn.Parameter(torch.ones(3))
    extra.grad = torch.ones(3)
    play = trains(rate, tells=lambda self: [extra.detach().clone(), len(self.param_groups)])
    play.before = {}
    return play


@pytest.mark.parametrize("one", case)
def test_states_are_as_in_eager(one):
    one.check()
