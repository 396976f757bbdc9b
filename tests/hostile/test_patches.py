"""Code that is patched, and modules, hooks and functions that are replaced, between calls."""

from __future__ import annotations

import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from tests.cases.plays import Play, net, pairs, sgd, singles, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


class Doubles(nn.Module):
    """A module of the user's own."""

    factor = 2.0

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def scale(self, x):
        return x * self.factor

    def forward(self, x):
        return self.scale(self.inner(x))


def own_class():
    """`Doubles` anew, so that patches of the class stay in the case."""
    return type("Doubles", (Doubles,), {"scale": Doubles.scale, "forward": Doubles.forward})


# --- classes and methods --------------------------------------------------------------------------


@case
def forward_of_the_class():
    cls = own_class()
    model = cls()
    change = {5: lambda: setattr(cls, "forward", lambda self, x: self.inner(x) + 1)}
    return trains(model, before=change)


@case
def a_method_by_super():
    class Base(nn.Module):
        def forward(self, x):
            return x * 2

    class Derived(Base):
        def forward(self, x):
            return super().forward(x) + 1

    model = Derived()
    return Play(
        lambda x: model(x),
        [model],
        {5: lambda: setattr(Base, "forward", lambda self, x: x * 5)},
        singles(),
    )


@case
def forward_on_the_instance():
    model = net()
    change = {
        5: lambda: setattr(model[1], "forward", torch.relu),
        7: lambda: delattr(model[1], "forward"),
    }
    return trains(model, before=change, calls=pairs(12))


@case
def a_bound_method_on_the_instance():
    model = own_class()()
    change = {5: lambda: setattr(model, "scale", types.MethodType(lambda self, x: x * 5, model))}
    return trains(model, before=change)


@case
def the_class_of_an_instance():
    class Triples(Doubles):
        factor = 3.0

    model = own_class()()
    return trains(model, before={5: lambda: setattr(model, "__class__", Triples)})


@case
def the_code_of_the_step():
    def step(x):
        return x * 2

    def other(x):
        return x * 5

    return Play(
        step, before={5: lambda: setattr(step, "__code__", other.__code__)}, calls=singles()
    )


@case
def a_plain_objects_operator():
    class Weight:
        def __init__(self, value):
            self.value = value

        def __mul__(self, x):
            return x * self.value

    weight = Weight(2.0)
    change = {
        4: lambda: setattr(weight, "value", 3.0),
        6: lambda: setattr(Weight, "__mul__", lambda self, x: x + self.value),
    }
    return Play(lambda x: weight * x, before=change, calls=singles(12))


@case
def a_function_of_torch_called_by_the_step():
    def step(x):
        return functional.gelu(x)

    def around(call):
        number = next(numbers)
        before = functional.gelu
        if number >= 5:
            functional.gelu = functional.relu
        try:
            return call()
        finally:
            functional.gelu = before

    numbers = iter(range(99))
    return Play(step, calls=singles(), around=around)


# --- modules --------------------------------------------------------------------------------------


@case
def a_module_appended():
    model = net()
    return trains(model, before={5: lambda: model.append(nn.ReLU())})


@case
def a_module_put_into_a_list():
    layers = [nn.Linear(4, 4)]

    def step(x):
        for layer in layers:
            x = layer(x)
        return x

    return Play(step, before={5: lambda: layers.append(nn.Linear(4, 2))}, calls=singles())


@case
def one_module_used_twice_later():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))

    def share():
        model[1] = model[0]

    return trains(model, before={5: share})


@case(forms="step")
def the_model_and_its_optimizer_replaced():
    held = SimpleNamespace(model=net())
    held.optimizer = sgd(held.model)

    def step(x, y):
        held.optimizer.zero_grad()
        functional.mse_loss(held.model(x), y).backward()
        held.optimizer.step()

    def replace():
        held.model = net()
        held.optimizer = sgd(held.model)

    return Play(step, [held], {5: replace}, pairs(10))


@case
def a_parameter_becomes_a_buffer():
    model = net()

    def change():
        bias = model[0].bias.detach()
        del model[0].bias
        model[0].register_buffer("bias", bias)

    return trains(model, before={5: change})


@case
def a_parametrization_added():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).t()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    change = {5: lambda: parametrize.register_parametrization(model[0], "weight", Symmetric())}
    return trains(model, before=change)


@pytest.mark.parametrize("case", case)
def test_patches(case):
    case.check()
