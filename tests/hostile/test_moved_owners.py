"""What optimizers, modules and objects own, moved by a step or by its loop."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, moves, net, pairs, setting, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


class Stats:
    def __init__(self, k):
        self.k = k


@case(forms="step")
def a_number_in_the_state_of_an_optimizer():
    weight = nn.Parameter(torch.ones(2))
    state = torch.optim.SGD([weight], lr=0.1).state
    state[weight]["k"] = 1
    two, five = (functools.partial(state[weight].update, k=k) for k in (2, 5))
    return moves(lambda x: x * state[weight]["k"], state[weight], before4=two, before7=five)


@case(forms="step")
def a_list_in_an_optimizer():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.log = []

    def step(x):
        optimizer.log.append(x * 2)
        return x + 1

    return moves(step, optimizer.log)


class Slotted:
    __slots__ = ("log",)


@case(forms="step", serves=True)
def lists_in_a_module_a_class_and_a_slot():
    class Logs:
        log: ClassVar[list[Any]] = []

    module, slotted = nn.Linear(1, 1), Slotted()
    module.log, module.more, slotted.log = [], [], []

    def step(x):
        module.log.append(x * 2)
        module.more += [x * 3]
        Logs.log.append(x * 4)
        slotted.log.append(x * 5)
        return x + 1

    return moves(step, lambda: (module.log, module.more, Logs.log, slotted.log))


@case(forms="step")
def objects_that_change_places():
    one, two = Stats(1), Stats(2)
    held = SimpleNamespace(a=one, b=two)

    def step(x):
        held.a, held.b = held.b, held.a
        return x * held.a.k

    watched = [held, one, two, lambda: (held.a is one, held.b is two)]
    return moves(step, *watched, number=16, before8=setting(one, "k", 5))


@case(forms="step", fault="the program of an object's tensor is confirmed against the old object")
def an_object_replaced_under_two_batch_sizes():
    held = SimpleNamespace(o=SimpleNamespace(t=torch.zeros(1)))

    def step(x):
        held.o.t = held.o.t + x.sum()
        return (x + 1).sum()

    def replaced():
        held.o = copy.copy(held.o)

    return Play(step, [held], {3: replaced}, [(torch.ones(2 + n % 2),) for n in range(12)])


class Lion(torch.optim.Optimizer):
    """Unpacks the betas of its group, as published optimizers do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["mean"] = torch.zeros_like(p)
                mean = state["mean"]
                p.add_((mean * beta1 + p.grad * (1 - beta1)).sign_(), alpha=-group["lr"])
                mean.mul_(beta2).add_(p.grad, alpha=1 - beta2)


@case(forms="step", serves=True)
def an_optimizer_that_unpacks_its_betas():
    model = net()
    optimizer = Lion(model.parameters())
    change = functools.partial(optimizer.param_groups[0].update, betas=(0.8, 0.9))
    return trains(model, optimizer=optimizer, before={5: change}, calls=pairs(12))


@case
def what_a_metaclass_answers_for_its_class():
    held = {"factor": 2.0}
    kind = type("Kind", (type,), {"factor": property(lambda cls: held["factor"])})
    settings: Any = kind("Settings", (), {"factor": torch.tensor(5.0)})
    three = functools.partial(held.update, factor=3.0)
    return moves(lambda x: x * settings.factor, held, before5=three)


@case
def a_property_above_that_is_replaced():
    class Above:
        @property
        def factor(self) -> float:
            return 2.0

    class Below(Above):
        @property
        def factor(self) -> float:
            return super().factor + 1.0

    below = Below()
    other = property(lambda self: 5.0)
    return moves(lambda x: x * below.factor, before5=setting(Above, "factor", other))


@case
def a_slot_above():
    class Above:
        __slots__ = ("factor",)

    class Below(Above):
        __slots__ = ()

        def doubled(self) -> float:
            return 2 * super().factor

    below = Below()
    below.factor = 2.0
    return moves(lambda x: x * below.doubled(), before5=setting(below, "factor", 3.0))


@pytest.mark.parametrize("case", case)
def test_moved_owners(case):
    case.check()
