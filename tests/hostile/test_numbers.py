"""Numbers and objects that Python reads by name, and that change between calls."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

from tests.hostile.kit import Cases
from tests.hostile.plays import (
    Play,
    module_of,
    net,
    reads,
    singles,
    trains,
)

case = Cases()
SCALE = 1.0
TABLE = {"scale": [1.0, 2.0]}


# --- names ----------------------------------------------------------------------------------------


@case
def a_closure_number():
    model, scale = net(), 1.0

    def change():
        nonlocal scale
        scale = 3.0

    return trains(model, lambda x, y: (model(x) - y).square().mean() * scale, before={5: change})


@case
def a_global():
    def step(x):
        return x * SCALE

    def change(value):
        globals()["SCALE"] = value

    return Play(step, before={0: lambda: change(1.0), 5: lambda: change(2.0)}, calls=singles())


def scaled_by(factor, start=""):
    """A step that another module scales by a global of its own, as an expression reads it."""
    other = module_of(f"{start}\ndef scaled(x):\n    return x * {factor}\n")
    change = {5: lambda: setattr(other, "factor", 2.0)}
    return Play(lambda x: other.scaled(x), before=change, calls=singles())


@case
def a_global_of_another_module():
    return scaled_by("factor", "factor = 1.0")


@case
def a_global_that_appears_later():
    return scaled_by("globals().get('factor', 1.0)")


@case
def a_global_by_its_name():
    return scaled_by("globals()['factor']", "factor = 1.0")


@case
def a_builtin_that_is_shadowed():
    other = module_of("def scaled(x):\n    return x * abs(-1.0)\n")
    change = {5: lambda: setattr(other, "abs", lambda value: value)}
    return Play(lambda x: other.scaled(x), before=change, calls=singles())


@case
def an_attribute_that_falls_back_to_the_class():
    class Config:
        scale = 1.0

    config = Config()
    config.scale = 2.0
    change = {4: lambda: delattr(config, "scale"), 6: lambda: setattr(Config, "scale", 5.0)}
    return Play(lambda x: x * config.scale, before=change, calls=singles(11))


@case
def an_attribute_by_getattr_with_a_default():
    config = SimpleNamespace()
    return reads(lambda: getattr(config, "scale", 1.0), lambda: setattr(config, "scale", 2.0))


@case
def an_attribute_that_hasattr_asks_for():
    config = SimpleNamespace()
    return reads(
        lambda: 2.0 if hasattr(config, "fast") else 1.0, lambda: setattr(config, "fast", 0)
    )


@case
def an_attribute_by_a_computed_name():
    config, names = SimpleNamespace(a=1.0, b=2.0), {"now": "a"}
    return reads(lambda: getattr(config, names["now"]), lambda: names.update(now="b"))


@case
def the_attribute_of_a_computed_name():
    config = SimpleNamespace(layer_0=1.0, layer_1=2.0)

    def step(x):
        for number in range(2):
            x = x * getattr(config, f"layer_{number}")
        return x

    return Play(step, before={5: lambda: setattr(config, "layer_1", 5.0)}, calls=singles())


@case
def vars_of_an_object():
    config = SimpleNamespace(a=1.0, b=2.0)
    return reads(lambda: sum(vars(config).values()), lambda: setattr(config, "b", 5.0))


@case
def slots():
    class Config:
        __slots__ = ("scale",)

    config = Config()
    config.scale = 1.0
    return reads(lambda: config.scale, lambda: setattr(config, "scale", 2.0))


@case
def a_property_over_a_private_name():
    class Config:
        def __init__(self):
            self._scale = 1.0

        @property
        def scale(self):
            return self._scale * 2

    config = Config()
    return reads(lambda: config.scale, lambda: setattr(config, "_scale", 2.0))


@case
def a_cached_property_dropped():
    class Config:
        base = 1.0

        @functools.cached_property
        def scale(self):
            return self.base * 2

    config = Config()

    def change():
        Config.base = 3.0
        del config.__dict__["scale"]

    return reads(lambda: config.scale, change)


@case
def an_object_with_getattr():
    class Config:
        def __init__(self):
            self.__dict__["held"] = {"scale": 1.0}

        def __getattr__(self, name):
            return self.held[name]

    config = Config()
    return reads(lambda: config.scale, lambda: config.held.update(scale=2.0))


@case
def an_object_with_getitem():
    class Config:
        def __init__(self):
            self.held = [1.0, 2.0]

        def __getitem__(self, key):
            return self.held[key]

    config = Config()
    return reads(lambda: config[0], lambda: config.held.reverse())


@case
def a_descriptor():
    class Field:
        value = 1.0

        def __get__(self, owner, cls):
            return self.value

    class Config:
        scale = Field()

    config = Config()
    return reads(lambda: config.scale, lambda: setattr(Field, "value", 2.0))


@case
def a_static_and_a_class_method():
    class Config:
        scale = 1.0

        @staticmethod
        def twice() -> float:
            return 2.0

        @classmethod
        def scaled(cls) -> float:
            return cls.scale * cls.twice()

    change = {
        5: lambda: setattr(Config, "twice", lambda: 3.0),
        7: lambda: setattr(Config, "scale", 4.0),
    }
    return Play(lambda x: x * Config.scaled(), before=change, calls=singles(12))


@case
def defaults_of_a_function():
    def scaled(x, by=1.0, *, then=1.0):
        return x * by + then

    def change():
        scaled.__defaults__ = (2.0,)

    changes = {5: change, 7: lambda: scaled.__kwdefaults__.update(then=3.0)}
    return Play(lambda x: scaled(x), before=changes, calls=singles(12))


@case
def a_mutable_default():
    def scaled(x, by=[1.0]):  # noqa: B006 - that is the case
        return x * by[0]

    return Play(
        lambda x: scaled(x),
        before={5: lambda: scaled.__defaults__[0].append(2.0) or scaled.__defaults__[0].reverse()},
        calls=singles(),
    )


@case
def an_attribute_of_a_function():
    def scaled(x):
        return x * scaled.by

    scaled.by = 1.0
    return Play(
        lambda x: scaled(x), before={5: lambda: setattr(scaled, "by", 2.0)}, calls=singles()
    )


@case
def keywords_of_a_partial():
    held = {"f": functools.partial(torch.mul, other=2.0)}
    return Play(
        lambda x: held["f"](x),
        before={5: lambda: held.update(f=functools.partial(torch.mul, other=3.0))},
        calls=singles(),
    )


@case
def a_cell_changed_through_another_function():
    def make():
        value = 1.0

        def read():
            return value

        def write(new):
            nonlocal value
            value = new

        return read, write

    read, write = make()
    return reads(read, lambda: write(2.0))


@case
def a_function_in_a_dict():
    activations = {"act": torch.relu}
    return Play(
        lambda x: activations["act"](x),
        before={5: lambda: activations.update(act=torch.tanh)},
        calls=singles(),
    )


@pytest.mark.parametrize("case", case)
def test_numbers(case):
    case.check()
