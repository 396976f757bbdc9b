"""Values that no name leads to: they lie on the stack of the frame when they are used."""

from __future__ import annotations

import collections
import ctypes
import functools
import multiprocessing
import types
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.record.worlds import World, item, setter


class Config:
    """An object that gives another one in several ways."""

    scale = 1.0

    def __init__(self, beta: float = 0.5, rank: int = 0) -> None:
        self.beta, self.rank = beta, rank

    @property
    def inner(self) -> Any:
        return self.__dict__["_inner"]

    def __getitem__(self, key: str) -> Any:
        return self.__dict__["_inner"]

    def __add__(self, other: Any) -> Any:
        return self.__dict__["_inner"]

    def given(self) -> Any:
        return self.__dict__["_inner"]


class Open(Config):
    """One that looks up what it has not."""

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_inner"]


def outer(kind: type = Config) -> Any:
    found = kind()
    found.__dict__["_inner"] = Config()
    return found


def moving(read: Any, holder: Any, name: str = "beta") -> Any:
    """``read`` gives a number that is ``holder``'s attribute."""
    values = (0.5, 0.75, 0.25)
    return World(lambda x: x * read(), [setter(holder, name, value) for value in values])


def what_a_property_gives() -> World:
    config = outer()
    return moving(lambda: config.inner.beta, config.given())


def what_a_user_s_item_gives() -> World:
    config = outer()
    return moving(lambda: config["any"].beta, config.given())


def what_an_operator_gives() -> World:
    config = outer()
    return moving(lambda: (config + 1).beta, config.given())


def what_a_missing_attribute_gives() -> World:
    config = outer(Open)
    return moving(lambda: config.anything.beta, config.given())


def what_getattr_gives() -> World:
    config = outer()
    # B009: the call is what is tested.
    return moving(lambda: getattr(config, "inner").beta, config.given())  # noqa: B009


def a_conditional_expression() -> World:
    one, other = Config(), Config()
    return moving(lambda: (one if one.rank == 0 else other).beta, one)


def one_or_the_other() -> World:
    one, other = Config(), Config()
    return moving(lambda: (one or other).beta, one)


def a_display() -> World:
    one, other = Config(), Config(rank=1)
    return moving(lambda: (one, other)[other.rank].beta, other)


def a_slice() -> World:
    held = [Config(), Config()]
    return moving(lambda: held[::-1][0].beta, held[1])


def sorted_objects() -> World:
    held = [Config(rank=1), Config()]
    return moving(lambda: sorted(held, key=lambda one: one.rank)[0].beta, held[1])


def the_greater_of_two() -> World:
    one, other = Config(), Config(rank=1)
    return moving(lambda: max(one, other, key=lambda config: config.rank).beta, other)


def an_object_made_in_the_step() -> World:
    class Made:
        beta = 0.5

    return moving(lambda: Made().beta, Made)


def an_attribute_of_super() -> World:
    class Base:
        beta = 0.5

    class Derived(Base):
        beta = 9.0

        def read(self) -> float:
            return super().beta

    derived = Derived()
    return moving(lambda: derived.read(), Base)


def a_mapping_that_is_matched() -> World:
    held = {"beta": 0.5}

    def read() -> float:
        match held:
            case {"beta": found}:
                return found
        return 0.0

    return World(lambda x: x * read(), [item(held, "beta", v) for v in (0.5, 0.75, 0.25)])


def a_property_that_is_replaced() -> World:
    class Held:
        beta = property(lambda self: 0.5)

    held = Held()
    changes = [property(lambda self: 0.5), property(lambda self: 0.75)]
    return World(lambda x: x * held.beta, [setter(Held, "beta", one) for one in changes])


def the_current_one_of_several() -> World:
    stack = [Config(0.5), Config(0.25)]

    def read() -> float:
        total = 0.0
        for _ in range(2):
            total += stack[-1].beta
            stack.insert(0, stack.pop())
        return total

    return moving(read, stack[0])


def a_view_of_a_dict() -> World:
    held = {"beta": 0.5}
    view = held.values()
    return World(lambda x: x * sum(view), [item(held, "beta", v) for v in (0.5, 0.75, 0.25)])


def a_partial_of_a_bound_method() -> World:
    held = {"beta": 0.5}
    get = functools.partial(held.get, "beta")
    return World(lambda x: x * get(), [item(held, "beta", v) for v in (0.5, 0.75, 0.25)])


def a_proxy_of_a_dict() -> World:
    held = {"beta": 0.5}
    proxy = types.MappingProxyType(held)
    changes = [item(held, "beta", value) for value in (0.5, 0.75, 0.25)]
    return World(lambda x: x * proxy.get("beta"), changes)


def a_number_of_c() -> World:
    number = ctypes.c_double(0.5)
    return moving(lambda: number.value, number, "value")


def a_number_that_processes_share() -> World:
    number = multiprocessing.Value("d", 0.5)
    return moving(lambda: number.value, number, "value")


def an_array_of_objects() -> World:
    held = np.array([0.5, 1.0], dtype=object)
    return World(lambda x: x * held[0], [item(held, 0, v) for v in (0.5, 0.75, 0.25)])


def a_library_s_object_that_is_called() -> World:
    curve = np.poly1d([0.5])
    return World(lambda x: x * float(curve(1.0)), [item(curve, 0, v) for v in (0.5, 0.75, 0.25)])


def defaults_of_a_function() -> World:
    def scaled(factor: float = 0.5) -> float:
        return factor

    values = ((0.5,), (0.75,), (0.25,))
    return World(
        lambda x: x * scaled.__defaults__[0],
        [setter(scaled, "__defaults__", one) for one in values],
    )


def a_tuple_of_a_user_s() -> World:
    class Pair(tuple):
        """As e3nn's, one without a length."""

        def __len__(self) -> int:
            raise NotImplementedError

    held = SimpleNamespace(pair=Pair((0.5, 1)))
    values = (Pair((0.5, 1)), Pair((0.75, 1)))
    return World(lambda x: x * held.pair[0], [setter(held, "pair", one) for one in values])


def a_chain_of_maps() -> World:
    held = {"beta": 0.5}
    chained = collections.ChainMap({}, held)
    changes = [item(held, "beta", value) for value in (0.5, 0.75, 0.25)]
    return World(lambda x: x * chained["beta"], changes)
