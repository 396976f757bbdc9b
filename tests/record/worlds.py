"""Functions that read something by name, each with the ways in which that changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

beta = 0.5
weights = [1.0, 2.0]
pair = (1.0, [2.0])


class World(NamedTuple):
    """A step, and what may change between calls; the first thing brings back the start."""

    build: Any
    changes: list[Any]


def assign(**values: Any) -> Any:
    """Globals of this module get other values."""
    return lambda: globals().update(values)


def setter(holder: Any, name: str, value: Any) -> Any:
    return lambda: setattr(holder, name, value)


def item(holder: Any, key: Any, value: Any) -> Any:
    return lambda: holder.__setitem__(key, value)


def global_number() -> World:
    return World(lambda x: x * beta, [assign(beta=0.5), assign(beta=0.75), assign(beta=1)])


def global_that_a_helper_reads() -> World:
    def helper(x):
        return x * beta

    return World(lambda x: helper(x), [assign(beta=0.5), assign(beta=0.75)])


def closure() -> World:
    gamma = 0.5

    def build(x):
        return x * gamma

    def change(value):
        def apply():
            nonlocal gamma
            gamma = value

        return apply

    return World(build, [change(0.5), change(0.75), change(-0.5)])


def nested_attribute() -> World:
    config = SimpleNamespace(loss=SimpleNamespace(gamma=0.5))
    return World(
        lambda x: x * config.loss.gamma,
        [
            setter(config, "loss", config.loss),
            setter(config, "loss", SimpleNamespace(gamma=0.75)),
            lambda: setattr(config.loss, "gamma", 0.25),
            lambda: setattr(config.loss, "gamma", 0.75),
        ],
    )


def a_local_name_for_it() -> World:
    config = SimpleNamespace(loss=SimpleNamespace(gamma=0.5))

    def build(x):
        loss = config.loss
        scale = loss.gamma
        return x * scale

    return World(build, [setter(config.loss, "gamma", v) for v in (0.5, 0.75)])


def getattr_of_it() -> World:
    config = SimpleNamespace(beta=0.5)
    return World(
        lambda x: x * getattr(config, "beta", 2.0),
        [
            setter(config, "beta", 0.5),
            setter(config, "beta", 0.75),
            lambda: delattr(config, "beta"),
        ],
    )


def vars_of_it() -> World:
    config = SimpleNamespace(beta=0.5)
    return World(
        lambda x: x * vars(config)["beta"], [setter(config, "beta", v) for v in (0.5, 1.5)]
    )


def slots() -> World:
    class Config:
        __slots__ = ("beta",)

    config = Config()
    config.beta = 0.5
    return World(lambda x: x * config.beta, [setter(config, "beta", v) for v in (0.5, 0.75)])


def a_property() -> World:
    class Config:
        def __init__(self):
            self.low, self.high = 0.5, 2.0

        @property
        def middle(self):
            return (self.low + self.high) / 2

    config = Config()
    return World(lambda x: x * config.middle, [setter(config, "high", v) for v in (2.0, 3.0)])


def an_object_that_a_function_returns() -> World:
    config = SimpleNamespace(beta=0.5)

    def get():
        return config

    def build(x):
        found = get()
        return x * found.beta

    return World(build, [setter(config, "beta", v) for v in (0.5, 0.75)])


def an_object_given_to_a_helper() -> World:
    configs = {0: SimpleNamespace(beta=0.5), 1: SimpleNamespace(beta=0.25)}

    def helper(config, x):
        return x * config.beta

    def build(x):
        for key in sorted(configs):
            x = helper(configs[key], x)
        return x

    return World(build, [setter(configs[1], "beta", v) for v in (0.25, 0.75)])


def objects_in_a_loop() -> World:
    terms = [SimpleNamespace(weight=1.0), SimpleNamespace(weight=2.0)]

    def build(x):
        total = 0.0
        for term in terms:
            total += term.weight
        return x * total

    return World(build, [setter(terms[0], "weight", v) for v in (1.0, 5.0)])


def objects_in_a_comprehension() -> World:
    terms = [SimpleNamespace(weight=1.0), SimpleNamespace(weight=2.0), SimpleNamespace(weight=3.0)]
    return World(
        lambda x: x * sum([term.weight for term in terms]),
        [setter(terms[1], "weight", v) for v in (2.0, 5.0)],
    )


def objects_in_a_generator() -> World:
    terms = [SimpleNamespace(weight=1.0), SimpleNamespace(weight=2.0), SimpleNamespace(weight=3.0)]
    return World(
        lambda x: x * sum(term.weight for term in terms),
        [setter(terms[1], "weight", v) for v in (2.0, 5.0)],
    )


def objects_beside_each_other() -> World:
    terms = [SimpleNamespace(weight=1.0), SimpleNamespace(weight=2.0)]

    def build(x):
        for term, factor in zip(terms, (2.0, 3.0), strict=True):
            scale = term.weight * factor
            x = x * scale
        return x

    return World(build, [setter(terms[0], "weight", v) for v in (1.0, 5.0)])


def a_dict_by_get() -> World:
    held = {"w": 0.5}
    return World(
        lambda x: x * held.get("w", 2.0), [item(held, "w", 0.5), item(held, "w", 3.0), held.clear]
    )


def a_dict_in_a_dict() -> World:
    held = {"inner": {"w": [0.5, 1.0]}}
    first = held["inner"]
    return World(
        lambda x: x * held["inner"]["w"][0],
        [
            item(held, "inner", first),
            item(held, "inner", {"w": [0.75]}),
            lambda: held["inner"]["w"].__setitem__(0, 0.25),
        ],
    )


def a_dict_given_on() -> World:
    held = {"scale": 0.5}

    def helper(x, scale):
        return x * scale

    return World(lambda x: helper(x, **held), [item(held, "scale", v) for v in (0.5, 0.75)])


def a_list_by_number() -> World:
    def build(x):
        for i in range(2):
            x = x * weights[i]
        return x

    return World(build, [item(weights, 1, v) for v in (2.0, 3.0)])


def a_list_in_a_loop() -> World:
    held = [1.0, 2.0]

    def build(x):
        for weight in held:
            x = x * weight
        return x

    return World(build, [item(held, slice(0, 9), v) for v in ([1.0, 2.0], [3.0], [1.0, 2.0, 4.0])])


def a_list_of_lists() -> World:
    held = [[1.0], [2.0]]
    return World(
        lambda x: x * sum(v for row in held for v in row), [item(held[1], 0, v) for v in (2.0, 3.0)]
    )


def a_set() -> World:
    held = {"relu"}

    def build(x):
        return torch.relu(x) if "relu" in held else torch.tanh(x)

    return World(build, [lambda: held.add("relu"), held.clear])


def a_tuple() -> World:
    return World(
        lambda x: x * pair[0] * pair[1][0], [assign(pair=(1.0, [2.0])), assign(pair=(3.0, [2.0]))]
    )
