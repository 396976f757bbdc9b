"""Large containers and arrays that a step reads or fills: all that is in them counts."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases.plays import Play, setting, singles
from tests.cases.table import Case, Table
from tests.support import thinned

case = Table("step graph", says=None)


def _filled(held: Any) -> Play:
    """Filled by the step, which never reads it."""

    def step(x):
        held.append(1)
        return x * 2

    return Play(step, [held], {}, singles(10, 3))


def _read(held: Any, key: Any, other: Any, read: Any) -> Play:
    before = {5: lambda: held.__setitem__(key, other)}
    return Play(lambda x: x * read(held), [], before, singles(12, 3))


@case(forms="step", serves=True)
def one_tensor_of_a_long_list():
    held = [torch.ones(3) for _ in range(1100)]
    return _read(held, 7, torch.full((3,), 5.0), lambda held: torch.stack(held).sum(0))


case.rows(
    {
        "a_long_list_of_numbers_that_grows": lambda: _filled([0.5] * 1500),
        "a_list_of_numbers_that_becomes_long": lambda: _filled([0.5] * 1023),
        "a_long_deque_of_numbers": lambda: _filled(deque([0.5] * 1500, maxlen=2000)),
        "one_number_of_a_long_list": lambda: _read([1] * 1500, 7, 5, sum),
        "one_value_of_a_large_dict": lambda: _read(
            dict.fromkeys(range(2000), 1), 7, 5, lambda held: sum(held.values())
        ),
        "one_element_of_a_large_array": lambda: _read(
            np.ones((200, 200)), (3, 3), 5.0, lambda held: float(held.sum())
        ),
    },
    forms="step",
    serves=True,
)


@case(forms="step", serves=True, slow=True)
def one_member_of_a_large_set():
    held = set(range(2000))
    before = {5: lambda: held.symmetric_difference_update({7, 5000})}
    return Play(lambda x: x * sum(held), [], before, singles(12, 3))


@case(forms="step", serves=True, slow=True)
def an_attribute_of_one_of_many_objects():
    held = [SimpleNamespace(k=1) for _ in range(300)]
    before = {5: setting(held[250], "k", 4), 9: setting(held[250], "k", 1)}
    return Play(lambda x: x * sum(one.k for one in held), [], before, singles(14, 3))


def _tensors(size: int) -> dict[str, Any]:
    return {f"k{number}": torch.zeros(3) for number in range(size)}


def one_is_put(size):
    """In a dict that holds many others."""
    held = _tensors(size)

    def step(x):
        held["last"] = x * 2

    return Play(step, [held], {6: lambda: held.pop("last")}, singles(12, 3))


def one_is_moved_on(size):
    """By what another one holds, which the loop replaces."""
    held = _tensors(size)

    def step(x):
        held["k1"] = held["k1"] + held["k2"] + x

    before = {n: lambda n=n: held.update(k2=torch.ones(3) * n) for n in (5, 8)}
    return Play(step, [held], before, singles(12, 3))


def a_number_among_tensors(size):
    """Written, and never read."""
    held = {**_tensors(size), "rows": 0}

    def step(x):
        held["rows"] = len(x)
        held["k3"] = x

    before = {n: lambda: held.update(rows=-1) for n in (5, 8)}
    return Play(step, [held], before, singles(12, 3))


def attributes_of_an_object(size):
    """As a trainer has them."""
    held = SimpleNamespace(**_tensors(size))

    def step(x):
        held.k1 = held.k2 + x
        held.rows = len(x)

    before = {n: lambda n=n: vars(held).update(k2=torch.ones(3) * n, rows=0) for n in (5, 8)}
    return Play(step, [held], before, singles(12, 3))


def averages_in_a_list(size):
    """One for each parameter."""
    held = list(_tensors(size).values())

    def step(x):
        for number in range(len(held)):
            held[number] = 0.9 * held[number] + x * number

    before = {8: lambda: held.__setitem__(3, torch.ones(3))}
    return Play(step, [held], before, singles(12, 3))


def places_of_a_deque(size):
    """Not at its ends."""
    held = deque(_tensors(size).values())

    def step(x):
        held[1] = held[0] + held[2] + x

    before = {n: lambda n=n: held.__setitem__(2, torch.ones(3) * n) for n in (5, 8)}
    return Play(step, [held], before, singles(12, 3))


WRITTEN = (
    one_is_put,
    one_is_moved_on,
    a_number_among_tensors,
    attributes_of_an_object,
    averages_in_a_list,
    places_of_a_deque,
)


SIZED = [(make, size) for make in WRITTEN for size in (64, 65, 300)]
OFTEN = [(one_is_put, 64), *((make, 65) for make in WRITTEN)]
"""Up to 64 places are looked at one by one."""


@pytest.mark.parametrize(
    "sized", thinned(SIZED, keep=OFTEN), ids=lambda one: f"{one[0].__name__}-{one[1]}"
)
def test_places_of_large_containers(sized):
    """What is put at one place of many is there after each replay."""
    make, size = sized
    Case(lambda: make(size), says=None, serves=True).check()


@pytest.mark.parametrize("case", case)
def test_large(case):
    case.check()
