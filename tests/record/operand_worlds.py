# ruff: noqa: E501, E702 -- several statements in a line
"""Objects that functions of C and operators ask, and objects that a step puts in place of others."""

from __future__ import annotations

import argparse
import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import torch

from tests.record.stack_worlds import Config, moving, outer
from tests.record.worlds import World, item, setter


def getattr_of_a_conditional_expression() -> World:
    held = SimpleNamespace(one=Config(), other=Config(2.0), first=True)
    return moving(lambda: (held.one if held.first else held.other).beta, held.one)


def hasattr_of_what_a_property_gives() -> World:
    config = outer()
    inner = config.inner

    def absent() -> None:
        vars(inner).pop("gamma", None)

    def build(x: Any) -> Any:
        return x * config.inner.gamma if hasattr(config.inner, "gamma") else x

    return World(build, [absent, setter(inner, "gamma", 0.5), absent])


def equal_namespaces() -> World:
    one, other = SimpleNamespace(beta=1), SimpleNamespace(beta=1)
    changes = [setter(one, "beta", value) for value in (1, 2)]
    return World(lambda x: x * 0.5 if one == other else x, changes)


def a_namespace_among_others() -> World:
    one, others = SimpleNamespace(beta=1), [SimpleNamespace(beta=1)]
    changes = [setter(one, "beta", value) for value in (1, 2)]
    return World(lambda x: x * 0.5 if one in others else x, changes)


def the_text_of_a_namespace() -> World:
    one = SimpleNamespace(beta=1)
    changes = [setter(one, "beta", value) for value in (1, 2)]
    return World(lambda x: x * 0.5 if repr(one) == "namespace(beta=1)" else x, changes)


def an_option_that_is_there() -> World:
    options = argparse.Namespace()

    def absent() -> None:
        vars(options).pop("beta", None)

    return World(
        lambda x: x * 0.5 if "beta" in options else x, [absent, setter(options, "beta", 1)]
    )


def a_tensor_in_a_view() -> World:
    held = {"scale": torch.ones(4)}
    values = held.values()
    changes = [item(held, "scale", torch.full((4,), value)) for value in (1.0, 2.0)]
    return World(lambda x: x * next(iter(values)), changes)


def a_tensor_that_a_bound_method_gives() -> World:
    held = {"scale": torch.ones(4)}
    get = held.get
    changes = [item(held, "scale", torch.full((4,), value)) for value in (1.0, 2.0)]
    return World(lambda x: x * get("scale"), changes)


class Current:
    """It has one of two objects at a time."""

    def __init__(self) -> None:
        self.one, self.other = Config(), Config(2.0)
        self.now: Any = None

    def scaled(self, x: Any) -> Any:
        return x * self.now.beta


def an_object_put_in_place_of_another() -> World:
    held = Current()

    # fmt: off
    def build(x: Any) -> Any:
        held.now = held.one; x = held.scaled(x); held.now = held.other; return held.scaled(x)
    # fmt: on

    return World(build, [setter(held.other, "beta", value) for value in (2.0, 3.0)])


def one_put_there_and_read_in_a_line() -> World:
    held = Current()

    # fmt: off
    def build(x: Any) -> Any:
        held.now = held.one; x = x * held.now.beta; held.now = held.other; return x * held.now.beta
    # fmt: on

    return World(build, [setter(held.other, "beta", value) for value in (2.0, 3.0)])


class Wrapper:
    """As gymnasium's: what it has not, the object in it has."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def an_attribute_before_that_of_the_object_in_it() -> World:
    wrapper = Wrapper(Config())

    def absent() -> None:
        vars(wrapper).pop("beta", None)

    return World(lambda x: x * wrapper.beta, [absent, setter(wrapper, "beta", 2.0)])


class Square:
    power = 2.0


def what_a_class_pattern_names() -> World:
    held = SimpleNamespace(kind=Square())

    def build(x: Any) -> Any:
        match held.kind:
            case Square(power=power):
                return x * power
        return x

    def absent() -> None:
        vars(held.kind).pop("power", None)

    return World(build, [absent, setter(held.kind, "power", 3.0)])


@dataclasses.dataclass
class Inner:
    beta: float = 0.5


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)


def a_dataclass_in_one_that_becomes_a_dict() -> World:
    outer_one = Outer()
    return moving(lambda: dataclasses.asdict(outer_one)["inner"]["beta"], outer_one.inner)


def an_object_in_one_that_is_copied() -> World:
    outer_one = SimpleNamespace(inner=Config())
    return moving(lambda: copy.deepcopy(outer_one).inner.beta, outer_one.inner)
