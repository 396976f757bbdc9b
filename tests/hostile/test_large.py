"""Large containers and arrays that a step reads or fills: all that is in them counts."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.hostile.kit import Cases
from tests.hostile.plays import Play, setting, singles

case = Cases()


def _filled(held: Any) -> Play:
    """Filled by the step, which never reads it."""

    def step(x):
        held.append(1)
        return x * 2

    return Play(step, [held], {}, singles(10, 3))


@case(forms="step", serves=True)
def a_long_list_of_numbers_that_grows():
    return _filled([0.5] * 1500)


@case(forms="step", serves=True)
def a_list_of_numbers_that_becomes_long():
    return _filled([0.5] * 1023)


@case(forms="step", serves=True)
def a_long_deque_of_numbers():
    return _filled(deque([0.5] * 1500, maxlen=2000))


def _read(held: Any, key: Any, other: Any, read: Any) -> Play:
    before = {5: lambda: held.__setitem__(key, other)}
    return Play(lambda x: x * read(held), [], before, singles(12, 3))


@case(forms="step", serves=True)
def one_number_of_a_long_list():
    return _read([1] * 1500, 7, 5, sum)


@case(forms="step", serves=True)
def one_value_of_a_large_dict():
    return _read(dict.fromkeys(range(2000), 1), 7, 5, lambda held: sum(held.values()))


@case(forms="step", serves=True)
def one_tensor_of_a_long_list():
    held = [torch.ones(3) for _ in range(1100)]
    return _read(held, 7, torch.full((3,), 5.0), lambda held: torch.stack(held).sum(0))


@case(forms="step", serves=True)
def one_element_of_a_large_array():
    return _read(np.ones((200, 200)), (3, 3), 5.0, lambda held: float(held.sum()))


@case(forms="step", serves=True)
def a_tensor_made_of_a_large_array():
    return _read(np.ones((200, 200)), (3, 3), 5.0, lambda held: torch.tensor(held).float().sum())


@case(forms="step", serves=True)
def one_member_of_a_large_set():
    held = set(range(2000))
    before = {5: lambda: held.symmetric_difference_update({7, 5000})}
    return Play(lambda x: x * sum(held), [], before, singles(12, 3))


@case(forms="step", serves=True)
def an_attribute_of_one_of_many_objects():
    held = [SimpleNamespace(k=1) for _ in range(300)]
    before = {5: setting(held[250], "k", 4), 9: setting(held[250], "k", 1)}
    return Play(lambda x: x * sum(one.k for one in held), [], before, singles(14, 3))


@pytest.mark.parametrize("case", case)
def test_large(case):
    case.check()
