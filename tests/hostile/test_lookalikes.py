"""Values that are equal to others and are not the same: classes of the user's over plain ones."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.cases.plays import Play, of, singles
from tests.cases.table import Case, Table

case = Table("step graph", says=None)


class Count(int):
    """A number with more to it."""


class Name(str):
    """A text with more to it."""

    __slots__ = ("scale",)


class Ratio(float):
    """A float that compares as it likes."""

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


class Raw(bytes):
    """Bytes with more to them."""


class Wave(complex):
    """A complex number with more to it."""


class Rows(list):
    """A list with a name."""


class Names(tuple):
    """A tuple with more to it."""


class Tags(set):
    """A set with more to it."""


class Fields(dict):
    """A dict with more to it."""


class Pair(NamedTuple):
    """Has no attributes of its own; a subclass does."""

    x: float
    y: float


class Scaled(Pair):
    """With one."""


class Anything:
    """Equal to all others."""

    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    def __repr__(self):
        return "anything"


def with_scale(value, scale):
    """The same value with another attribute."""
    value = copy.copy(value)
    value.scale = scale
    return value


ALIKE: dict[str, Any] = {
    "int": Count(3),
    "str": Name("three"),
    "float": Ratio(3.0),
    "bytes": Raw(b"three"),
    "complex": Wave(3 + 1j),
    "list": Rows([1.0]),
    "tuple": Names((1.0,)),
    "set": Tags({1.0}),
    "dict": Fields(a=1.0),
    "named tuple": Scaled(1.0, 2.0),
    "anything": Anything(1.0),
}


def scale_of(value):
    """Wherever it lies."""
    return value.scale if hasattr(value, "scale") else next(iter(value)).scale


def given(make):
    """As an argument: one value in the first calls, one that looks like it in others."""
    return of(lambda x, value: x * scale_of(value), lambda n: (torch.ones(3), make(n)), number=11)


def held(make):
    """The same in an attribute of an object."""

    class Config:
        value = None

    config = Config()
    config.value = make(0)
    changes = {n: lambda n=n: setattr(config, "value", make(n)) for n in range(1, 11)}
    return Play(lambda x: x * scale_of(config.value), before=changes, calls=singles(11))


def turns(value, around):
    """Kept objects, which take turns."""
    kept = [around(with_scale(value, scale)) for scale in (1.0, 2.0, 3.0)]
    return lambda n: kept[0 if n < 4 else 1 if n < 7 else 2]


@pytest.mark.parametrize("lies", [given, held])
@pytest.mark.parametrize(
    "around",
    [
        pytest.param(lambda v: v, id="itself"),
        pytest.param(lambda v: (v,), id="in a tuple", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ALIKE)
def test_attributes_of_plain_values(name, around, lies):
    """They count, as those of objects do."""
    Case(lambda: lies(turns(ALIKE[name], around)), says=None, serves=True).check()


@case
def keys_that_are_equal_and_another():
    keys = [(1,), (1.0,), (True,)]
    return of(
        lambda x, table: x * torch.tensor(next(iter(table))).element_size(),
        lambda n: (torch.ones(3), {keys[n // 4]: 0}),
        number=12,
    )


@case
def numbers_that_are_returned():
    count = with_scale(Count(3), 2.0)
    return Play(lambda x: {"x": x * count, "count": count}, calls=singles())


@case
def memory_seen_through_a_view():
    data = bytearray(b"\x01\x02")
    view = memoryview(data)
    return Play(lambda x: x * view[0], before={6: lambda: data.__setitem__(0, 3)}, calls=singles())


@case(forms="step")
def rows_by_an_array():
    table, order = torch.randn(8, 4), np.arange(3)
    return Play(lambda x: (x[order], table[order].sum()), [table], calls=singles())


@case(forms="step")
def minibatches_by_arrays():
    table = torch.randn(8, 4)

    def step(x):
        order = np.arange(8)
        return sum((table[order[n : n + 2]] * x[:2]).sum() for n in range(0, 8, 2))

    return Play(step, [table], calls=singles())


@case
def a_class_whose_module_is_no_text():
    class Odd:
        __module__ = property(lambda self: "odd")  # as compiled functions have it
        scale = 2.0

        def __call__(self, x):
            return x * self.scale

    odd = Odd()
    return Play(lambda x: odd(x), before={5: lambda: setattr(odd, "scale", 3.0)}, calls=singles())


@case(forms="step")
def a_partial_that_hides_its_function():
    class Bound(functools.partial):  # as Pyro has it
        __slots__ = ("func",)

    double = Bound(torch.mul, other=2)
    return Play(lambda x: double(x), calls=singles())


@case(forms="step")
def an_object_that_says_it_is_a_partial():
    class Double:
        __class__ = property(lambda self: functools.partial)

        def __call__(self, x):
            return 2 * x

    double = Double()
    return Play(lambda x: double(x), calls=singles())


@pytest.mark.parametrize("case", case)
def test_lookalikes(case):
    """In eager and as a program."""
    case.check()
