"""Lists and deques that a step turns, pops from and puts back, and that the loop changes too."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


def _tensors(*values: float) -> list[torch.Tensor]:
    return [torch.full((5, 4), value) for value in values]


@case(forms="step", serves=True)
def a_number_taken_out_and_put_back():
    numbers = [1, 1]

    def step(x):
        numbers.pop(0)
        numbers.append(1)
        return x * numbers[0]

    return Play(step, [numbers], {}, singles(10))


@case(forms="step")
def a_list_that_is_given_its_length():
    numbers = [1, 1]

    def step(x):
        numbers.pop(0)
        numbers.append(len(numbers))
        return x * numbers[0]

    return Play(step, [numbers], {6: lambda: numbers.append(3)}, singles(10))


def _window(turn: Any, *values: float, most: int, refill: bool = False) -> Play:
    window = deque(_tensors(*values), maxlen=most)

    def step(x):
        turn(window, x)
        return x + window[len(window) - 1]

    def put():
        window.clear()
        window.extend(_tensors(3, 4, 5))

    return Play(step, [window], {5: put} if refill else {}, singles(12))


def _to_the_other_end(window: Any, x: Any) -> None:
    window.appendleft(x * 1)
    window.append(window.popleft())


case.rows(
    {
        "a_window_that_is_turned_and_refilled": lambda: _window(
            _to_the_other_end, 0, 2, 0, most=4, refill=True
        ),
        "a_full_window_the_other_way_round": lambda: _window(
            lambda window, x: window.reverse(), 0, 1, 2, most=3
        ),
        "a_full_window_by_one": lambda: _window(
            lambda window, x: window.rotate(), 0, 1, 2, most=3, refill=True
        ),
    },
    forms="step",
)


@case(forms="step", serves=True)
def the_middle_of_objects_whose_ends_change_places():
    things = [SimpleNamespace(k=1), SimpleNamespace(k=2), SimpleNamespace(k=3)]

    def step(x):
        things[0], things[-1] = things[-1], things[0]
        return x + things[1].k

    def replace():
        things[1] = SimpleNamespace(k=7)

    def alias():
        things[1] = things[0]

    return Play(step, [lambda: [one.k for one in things]], {6: replace, 9: alias}, singles(14))


@case(forms="step")
def a_list_that_is_cut_to_its_last_three():
    kept = _tensors(1, 1)

    def step(x):
        kept.append(x * 1)
        del kept[:-3]
        return x + kept[0]

    return Play(step, [kept], {6: lambda: kept.append(torch.ones(5, 4))}, singles(11))


@case(forms="step", serves=True)
def the_last_of_a_list_that_the_loop_fills():
    kept = _tensors(1, 2)

    def step(x):
        kept[-1] = x * 2
        return x + kept[0]

    return Play(step, [kept], {5: lambda: kept.append(torch.ones(5, 4))}, singles(11))


@case(forms="step", serves=True)
def pairs_of_which_the_loop_makes_one():
    pairs = [(torch.ones(5, 4), 2), (torch.zeros(5, 4), 1)]

    def step(x):
        pairs[0] = (x * 2, 1)
        return x + pairs[1][0] * pairs[1][1]

    def put():
        pairs[-1] = pairs[0]

    return Play(step, [pairs], {4: put, 7: put}, singles(12))


@case(forms="step", serves=True)
def the_middle_of_a_list_made_anew():
    held = SimpleNamespace(pairs=[(tensor, 1) for tensor in _tensors(1, 0, 2)])

    def step(x):
        y = x + held.pairs[len(held.pairs) // 2][0]
        held.pairs[:] = [*held.pairs[1:], (x, 2)]
        return y

    return Play(step, [held], {}, singles(12))


def _partly(held: Any, read: Any, put: Any) -> Play:
    """The step writes one place and reads all; the loop writes another one."""

    def step(x):
        held[0] = x * 2
        return x + read(held)

    return Play(step, [held], {5: put, 8: put}, singles(12))


@case(forms="step", serves=True)
def a_dict_of_which_the_loop_replaces_one():
    held = dict(enumerate(_tensors(1, 2, 3)))
    put = torch.full((5, 4), 7.0)
    return _partly(held, lambda some: sum(some.values()), lambda: held.update({2: put + 1}))


@case(forms="step", serves=True)
def a_dict_by_parameter_of_which_the_loop_replaces_one():
    keys = [nn.Parameter(torch.zeros(3)) for _ in range(3)]
    held = dict(zip(keys, _tensors(1, 2, 3), strict=True))

    def step(x):
        held[keys[0]] = x * 2
        return x + sum(held.values())

    def put(value):
        return lambda: held.update({keys[2]: torch.full((5, 4), value)})

    watched = [lambda: list(held.values())]
    return Play(step, watched, {5: put(7.0), 8: put(9.0)}, singles(13))


@case(forms="step", serves=True)
def lists_in_a_list_of_which_the_loop_replaces_one():
    held = [torch.ones(5, 4), _tensors(1, 2)]

    def put():
        held[1][1] = torch.full((5, 4), 7.0)

    return _partly(held, lambda some: some[0] + sum(some[1]), put)


@case(forms="step")
def turned_while_one_tensor_lies_in_it_twice():
    held = _tensors(1, 2, 3)

    def step(x):
        held.insert(0, held.pop())
        return x * 2

    def alias():
        held[-1] = held[0]

    return Play(step, [held], {6: alias}, singles(16))


@pytest.mark.parametrize("case", case)
def test_turned(case):
    case.check()
