# ruff: noqa: E501, E702 -- several statements in a line
"""Objects that functions of C and operators ask, and objects that a step puts in place of others."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
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


def an_attribute_on_a_line_of_its_own() -> World:
    config = outer()

    # fmt: off
    def build(x: Any) -> Any:
        return torch.mul(
            x,
            config.inner.beta,
        )
    # fmt: on

    return World(build, [setter(config.inner, "beta", value) for value in (0.5, 0.75)])


def a_loop_of_many_lines() -> World:
    configs = [outer(), outer()]

    # fmt: off
    def build(x: Any) -> Any:
        return sum(
            torch.mul(
                x,
                config.inner.beta,
            )
            for config in configs
        )
    # fmt: on

    return World(build, [setter(configs[1].inner, "beta", value) for value in (0.5, 0.75)])


def a_jump_over_many_instructions() -> World:
    config = outer()
    config.inner.extra = []
    lines = "\n".join("        y = y * 1.0 + 1.0" for _ in range(90))
    names: dict[str, Any] = {"config": config}
    exec(f"def build(x):\n    y = x\n    if config.inner.extra:\n{lines}\n    return y", names)
    changes = [setter(config.inner, "extra", value) for value in ([], [1])]
    return World(names["build"], changes)


class Wrapped(torch.nn.Module):
    """It has what the module in it has."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


def an_attribute_of_the_module_in_a_wrapper() -> World:
    module = torch.nn.Linear(4, 4)
    module.config = Config()
    wrapped = Wrapped(module)
    return moving(lambda: wrapped.config.beta, module.config)


class lazily:
    """A descriptor that an attribute of the object comes before."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, held: Any, cls: Any = None) -> Any:
        return self.function(held)


class Lazy:
    @lazily
    def beta(self) -> float:
        return 0.5


def an_attribute_before_a_descriptor() -> World:
    held = Lazy()

    def absent() -> None:
        vars(held).pop("beta", None)

    return World(lambda x: x * held.beta, [absent, setter(held, "beta", 2.0)])


def getattr_by_a_made_name() -> World:
    held = Config()
    return moving(lambda: getattr(held, f"be{'ta'}"), held)


def getattr_with_a_default_by_a_made_name() -> World:
    held = SimpleNamespace()

    def absent() -> None:
        vars(held).pop("beta", None)

    changes = [absent, setter(held, "beta", 2.0)]
    return World(lambda x: x * getattr(held, f"be{'ta'}", 0.5), changes)


def getattr_of_unpacked_arguments() -> World:
    held = Config()
    given = (held, "beta")
    return moving(lambda: getattr(*given), held)


def getattr_along_a_path() -> World:
    held = SimpleNamespace(inner=Config())
    path = ["inner", "beta"]
    return moving(lambda: functools.reduce(getattr, path, held), held.inner)


WEIGHTS = [0.5, 2.0]


class Weighted:
    """Made in the step, with what was there before."""

    def __init__(self, more: Any = WEIGHTS) -> None:
        self.weights, self.more, self.named = WEIGHTS, more, {"both": WEIGHTS}

    def __call__(self, x: Any) -> Any:
        return x * self.weights[0] * self.more[1] + sum(self.named["both"])


def a_list_in_what_the_step_makes() -> World:
    return World(lambda x: Weighted()(x), [item(WEIGHTS, 0, value) for value in (0.5, 0.75)])


def sizes_in_a_tensor_that_no_op_touches() -> World:
    sizes = torch.tensor([1, 3])
    changes = [lambda: sizes.copy_(torch.tensor([1, 3])), lambda: sizes.copy_(torch.tensor([2, 2]))]
    return World(lambda x: x.split(sizes.tolist())[0].sum() * x, changes)


class Answers(dict):
    """As easydict's."""

    __getattr__ = dict.__getitem__


answers = Answers(beta=0.5)


def a_global_that_looks_up_all_attributes() -> World:
    changes = [item(answers, "beta", value) for value in (0.5, 0.75)]
    return World(lambda x: x * answers.beta, changes)


class Seems:
    """As wrapt's proxies: it gives the class of what it stands for."""

    def __init__(self, held: Any) -> None:
        object.__setattr__(self, "_held", held)

    @property
    def __class__(self) -> Any:
        return type(self._held)

    def __getitem__(self, key: Any) -> Any:
        return self._held[key]


def a_proxy_with_the_class_of_a_dict() -> World:
    held = {"beta": 0.5}
    proxy = Seems(held)
    changes = [item(held, "beta", value) for value in (0.5, 0.75)]
    return World(lambda x: x * proxy["beta"], changes)


class Shared:
    """As accelerate's states: all objects have one dict."""

    _shared = {"beta": 0.5}  # noqa: RUF012 -- shared is the point

    def __init__(self) -> None:
        self.__dict__ = self._shared


def a_dict_that_all_objects_of_a_class_share() -> World:
    return moving(lambda: Shared().beta, Shared())


def names_that_an_object_has() -> World:
    held = SimpleNamespace(beta=0.5)

    def absent() -> None:
        vars(held).pop("beta_more", None)

    def build(x: Any) -> Any:
        return x * sum(getattr(held, name) for name in dir(held) if name.startswith("beta"))

    return World(build, [absent, setter(held, "beta_more", 1.0)])
