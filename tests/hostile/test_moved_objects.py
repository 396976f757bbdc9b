"""Objects whose attributes a step or its loop moves, and the ways that lead to them."""

from __future__ import annotations

import enum
import functools
import threading
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases.plays import Play, moves, setting
from tests.cases.table import Table

case = Table("step graph", says=None)


def other(k: Any) -> Any:
    """1, 2, 1, 2 ..., and from anything else 1."""
    return 3 - k if k in (1, 2) else 1


def signed(step: Any, *watched: Any) -> Play:
    """``step(x, y)``; y is a number in a tensor, negative in some calls, and late in others."""
    signs = (1, 1, 1, 1, -1, 1, -1, -1, 1, 1, 1, -1, 1, -1)
    return Play(step, watched, calls=[(torch.randn(5, 4), torch.tensor(float(s))) for s in signs])


# --- how a place is written -----------------------------------------------------------------------


class Field:
    """A descriptor that keeps its value in the object."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, held, owner):
        return held.__dict__[self.name]

    def __set__(self, held, value):
        held.__dict__[self.name] = value


class WithField:
    k = Field()


@case(forms="step", serves=True)
def a_state_behind_a_descriptor():
    held = WithField()
    held.k = 1

    def step(x):
        found = held.k
        held.k = other(found)
        return x * found

    return moves(step, held, number=16, before7=setting(held, "k", 1))


@case(forms="step", serves=True)
def a_dict_of_attributes_that_is_updated():
    held = SimpleNamespace(k=1)

    def step(x):
        found = held.__dict__["k"]
        held.__dict__.update(k=other(found))
        return x * found

    return moves(step, held, number=16, before7=setting(held, "k", 1))


@case(forms="step")
def an_attribute_that_is_deleted():
    held = SimpleNamespace()

    def step(x):
        found = getattr(held, "k", 1)
        if found == 1:
            held.k = 2
        else:
            del held.k
        return x * found

    return moves(step, held, number=16, before7=setting(held, "k", 2))


@case(forms="step", serves=True)
def an_exclusive_or():
    held = SimpleNamespace(a=0, n=0)

    def step(x):
        held.a = 1 - held.a
        held.n ^= 1
        return x * held.a

    return moves(step, held, number=16, before6=setting(held, "n", 1))


@case(forms="step", serves=True)
def a_loop_over_objects_on_one_line():
    held = [SimpleNamespace(k=1), SimpleNamespace(k=2)]

    def step(x):
        # One line is the case.
        for one in held: one.k = other(one.k)  # noqa: E701  # fmt: skip
        return x * held[0].k + 10 * held[1].k

    return moves(step, held, number=16, before7=setting(held[1], "k", 2))


@case(forms="step")
def attributes_set_in_a_comprehension():
    held = [SimpleNamespace(k=1), SimpleNamespace(k=2)]

    def step(x, y):
        if y.sum() > 0:
            [setattr(one, "k", 2) for one in held[:1]]
        else:
            [setattr(one, "k", 1) for one in held[:1]]
        return x * 2

    return signed(step, held)


# --- what is only written -------------------------------------------------------------------------


def writes(up: Any, down: Any) -> Play:
    """One of two values is put into an attribute, by the sign of a tensor."""
    held = SimpleNamespace(k=up())

    def step(x, y):
        held.k = up() if y.sum() > 0 else down()
        return x * 2

    return signed(step, held)


class Phase(enum.Enum):
    DOWN = 0
    UP = 1


class Number(int):
    pass


class Stats:
    def __init__(self, k):
        self.k = k


case.rows(
    {
        "a_member_of_an_enumeration_that_is_written": lambda: writes(
            lambda: Phase.UP, lambda: Phase.DOWN
        ),
        "an_object_that_is_made_and_written": lambda: writes(lambda: Stats(1), lambda: Stats(0)),
        "a_number_of_a_class_of_ones_own_that_is_written": lambda: writes(
            lambda: Number(1), lambda: Number(2)
        ),
        "a_number_of_numpy_that_is_written": lambda: writes(
            lambda: np.float64(1.0), lambda: np.float64(2.0)
        ),
    },
    forms="step",
)


@case(forms="step")
def an_attribute_whose_name_is_in_a_variable():
    held, name = SimpleNamespace(k=1), "k"

    def step(x, y):
        if y.sum() > 0:
            setattr(held, name, 1)
        else:
            setattr(held, name, 0)
        return x * 2

    return signed(step, held)


# --- how a place is reached -----------------------------------------------------------------------


@case(forms="step", serves=True)
def a_container_that_a_function_returns():
    def table(known=[1]):  # noqa: B006 - that is the case
        return known

    def put(value):
        return lambda: table().__setitem__(0, value)

    return moves(lambda x: x * table()[0], table(), before4=put(2), before7=put(5))


class Holder:
    def __init__(self):
        self._items = []

    @property
    def items(self):
        return self._items


@case(forms="step")
def a_list_behind_a_property():
    held = Holder()

    def step(x):
        if not len(held.items):
            held.items.append(torch.zeros(5, 4))
        held.items[0] = held.items[0] + x
        return held.items[0] * 2

    def more():
        held.items.append(torch.ones(5, 4))

    return moves(step, held, number=18, before6=held.items.clear, before9=more)


@case(forms="step", serves=True)
def an_object_in_a_deque():
    held = deque([SimpleNamespace(k=1), SimpleNamespace(k=2)])
    first = held[0]
    between = {"before4": setting(first, "k", 2), "before7": setting(first, "k", 5)}
    return moves(lambda x: x * held[0].k, held, **between)


@case(forms="step", serves=True)
def an_object_behind_a_weak_reference():
    kept = Stats(1)
    held = weakref.ref(kept)

    def step(x):
        found = held().k
        held().k = other(found)
        return x * found

    return moves(step, kept, number=16, before7=setting(kept, "k", 1))


@case(forms="step")
def what_belongs_to_a_thread():
    held = threading.local()
    held.k = 1
    return moves(lambda x: x * held.k, lambda: held.k, before5=setting(held, "k", 2))


class One:
    k = 1


class Two(One):
    k = 2


@case(forms="step", serves=True)
def an_object_of_another_class():
    held = SimpleNamespace(state=One())
    two, one = (setting(held.state, "__class__", kind) for kind in (Two, One))
    return moves(lambda x: x * held.state.k, lambda: held.state.k, before4=two, before7=one)


@case(forms="step")
def a_cached_function_of_what_moves():
    base = [1]

    @functools.lru_cache
    def cached():
        return base[0]

    def step(x, turn):
        if turn:
            base[0] = 3 - cached()
            cached.cache_clear()
        return x * cached()

    turns = [0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1]
    return Play(step, [base], calls=[(torch.randn(5, 4), turn) for turn in turns])


@pytest.mark.parametrize("case", case)
def test_moved_objects(case):
    case.check()
