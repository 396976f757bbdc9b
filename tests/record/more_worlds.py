"""More of them: classes, functions, arrays, modules."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import math
from array import array as array_of
from collections import UserList
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.record import settings
from tests.record.worlds import World, item, setter

beta: Any = 0.5
array = np.array([1.0, 2.0, 3.0])
tensor = torch.ones(4)


class Mode(enum.Enum):
    """A choice."""

    FAST = 1
    EXACT = 2


mode = Mode.FAST


def assign(**values: Any) -> Any:
    """Globals of this module get other values."""
    return lambda: globals().update(values)


def class_attribute() -> World:
    class Config:
        beta = 0.5

    config = Config()

    def forget():
        vars(config).clear()
        Config.beta = 0.5

    return World(
        lambda x: x * config.beta,
        [forget, setter(Config, "beta", 0.75), setter(config, "beta", 0.25)],
    )


def attribute_of_the_type() -> World:
    class Base:
        beta = 0.5

    class Config(Base):
        pass

    config = Config()

    def forget():
        if "beta" in vars(Config):
            del Config.beta
        Base.beta = 0.5

    return World(
        lambda x: x * type(config).beta,
        [forget, setter(Base, "beta", 0.75), setter(Config, "beta", 0.25)],
    )


def a_method() -> World:
    class Scale:
        def scale(self, x):
            return x * 2.0

    first, held = Scale.scale, Scale()
    return World(
        lambda x: held.scale(x),
        [setter(Scale, "scale", first), setter(Scale, "scale", lambda self, x: x * 3.0)],
    )


def static_method() -> World:
    class Scale:
        @staticmethod
        def scale(x: Any) -> Any:
            return x * 2.0

    first = vars(Scale)["scale"]
    return World(
        lambda x: Scale.scale(x),
        [setter(Scale, "scale", first), setter(Scale, "scale", staticmethod(lambda x: x * 3.0))],
    )


def default_of_a_helper() -> World:
    def helper(x, scale=0.5):
        return x * scale

    return World(lambda x: helper(x), [setter(helper, "__defaults__", (v,)) for v in (0.5, 0.75)])


def keyword_default() -> World:
    def helper(x, *, scale=0.5):
        return x * scale

    return World(
        lambda x: helper(x),
        [
            setter(helper, "__kwdefaults__", helper.__kwdefaults__),
            setter(helper, "__kwdefaults__", {"scale": 0.75}),
            lambda: helper.__kwdefaults__.update(scale=0.25),
        ],
    )


def enumeration() -> World:
    def build(x):
        return torch.relu(x) if mode is Mode.FAST else torch.tanh(x)

    return World(build, [assign(mode=Mode.FAST), assign(mode=Mode.EXACT)])


def small_array() -> World:
    return World(lambda x: x * float(array[1]), [item(array, 1, v) for v in (2.0, 5.0)])


def array_as_a_constant() -> World:
    def build(x):
        return x + torch.from_numpy(array).sum()

    return World(build, [item(array, 1, v) for v in (2.0, 5.0)])


def a_function() -> World:
    held = SimpleNamespace(act=torch.relu)
    return World(lambda x: held.act(x), [setter(held, "act", v) for v in (torch.relu, torch.tanh)])


def a_function_of_the_module() -> World:
    first = settings.activation
    return World(
        lambda x: settings.activation(x),
        [
            setter(settings, "activation", first),
            setter(settings, "activation", lambda x: x * 3),
        ],
    )


def number_of_a_module() -> World:
    return World(
        lambda x: x * settings.BETA * settings.config.gamma,
        [
            lambda: (setattr(settings, "BETA", 0.5), setattr(settings.config, "gamma", 2.0)),
            setter(settings, "BETA", 0.75),
            setter(settings.config, "gamma", 3.0),
        ],
    )


def a_global_in_place_of_a_builtin() -> World:
    def forget():
        globals().pop("abs", None)

    return World(lambda x: x * abs(-2.0), [forget, assign(abs=lambda x: 5.0)])


def partial() -> World:
    held = SimpleNamespace(f=functools.partial(torch.mul, other=2.0))
    return World(
        lambda x: held.f(x),
        [
            setter(held, "f", held.f),
            setter(held, "f", functools.partial(torch.mul, other=3.0)),
            lambda: held.f.keywords.update(other=4.0),
        ],
    )


def partial_as_the_step() -> World:
    def step(x, options):
        return x * options["w"]

    options = {"w": 0.5}
    return World(
        functools.partial(step, options=options), [item(options, "w", v) for v in (0.5, 2)]
    )


def a_tensor() -> World:
    first, other = torch.full((4,), 2.0), torch.full((4,), 3.0)
    return World(lambda x: x * tensor, [assign(tensor=first), assign(tensor=other)])


def an_attribute_of_a_tensor() -> World:
    held = torch.ones(4)
    held.scale = 0.5
    return World(lambda x: x * held * held.scale, [setter(held, "scale", v) for v in (0.5, 0.75)])


def a_callable_object() -> World:
    class Scale:
        def __init__(self):
            self.by = 0.5

        def __call__(self, x):
            return x * self.by

    scale = Scale()
    return World(lambda x: scale(x), [setter(scale, "by", v) for v in (0.5, 0.75)])


def getattr_of_its_own() -> World:
    class Config:
        def __init__(self):
            self.values = {"beta": 0.5}

        def __getattr__(self, name):
            return self.values[name]

    config = Config()
    return World(lambda x: x * config.beta, [item(config.values, "beta", v) for v in (0.5, 0.75)])


def getattribute_of_its_own() -> World:
    """As a transformers config has."""

    class Config:
        names = {"width": "d"}  # noqa: RUF012  # what users write

        def __init__(self):
            self.d = 2.0

        def __getattribute__(self, name):
            return super().__getattribute__({"width": "d"}.get(name, name))

    config = Config()
    return World(lambda x: x * config.width, [setter(config, "d", v) for v in (2.0, 3.0)])


def items_of_its_own() -> World:
    class Config:
        def __init__(self):
            self.values = {"beta": 0.5}

        def __getitem__(self, name):
            return self.values[name]

    config = Config()
    return World(
        lambda x: x * config["beta"], [item(config.values, "beta", v) for v in (0.5, 0.75)]
    )


def a_list_of_pythons_own() -> World:
    rates = UserList([0.5])

    def only(values):
        rates.data[:] = values

    return World(lambda x: x * sum(rates), [functools.partial(only, v) for v in ([1], [1, 2])])


def a_name_from_a_module_that_a_line_imports() -> World:
    def build(x):
        from tests.record.settings import BETA

        return x * BETA

    return World(build, [setter(settings, "BETA", v) for v in (0.5, 0.75)])


def a_walrus() -> World:
    config = SimpleNamespace(loss=SimpleNamespace(gamma=0.5))
    return World(
        lambda x: x * (loss := config.loss).gamma * (1.0 if math.isfinite(loss.gamma) else 0.0),
        [setter(config.loss, "gamma", v) for v in (0.5, 0.75)],
    )


def bytes_and_arrays() -> World:
    held, raw = array_of("f", [0.5]), bytearray(b"\x02")
    return World(
        lambda x: x * held[0] * raw[0],
        [
            lambda: (held.__setitem__(0, 0.5), raw.__setitem__(0, 2)),
            item(held, 0, 0.75),
            item(raw, 0, 3),
        ],
    )


# Functions in functions that nothing of the user's leads to: a library holds and calls them.


def a_context_manager_of_a_generator() -> World:
    held = {"beta": 0.5}

    @contextlib.contextmanager
    def scaled():
        yield held["beta"]

    def build(x):
        with scaled() as beta:
            return x * beta

    return World(build, [item(held, "beta", v) for v in (0.5, 0.75)])


def the_default_of_a_dict() -> World:
    held = {"beta": 0.5}
    table: Any = collections.defaultdict(lambda: held["beta"])
    return World(
        lambda x: (x * table["x"], table.clear())[0],
        [item(held, "beta", v) for v in (0.5, 0.75)],
    )


def a_cached_property() -> World:
    held = {"beta": 0.5}

    class Config:
        @functools.cached_property
        def beta(self):
            return held["beta"]

    return World(lambda x: x * Config().beta, [item(held, "beta", v) for v in (0.5, 0.75)])


def a_function_of_autograd() -> World:
    held = {"beta": 0.5}

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * held["beta"]

    return World(lambda x: Scaled.apply(x), [item(held, "beta", v) for v in (0.5, 0.75)])
