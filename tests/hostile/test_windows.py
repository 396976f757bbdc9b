"""What a step fills, turns and compares: windows of fixed length, other lists, very objects."""

from __future__ import annotations

from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, setting, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- windows --------------------------------------------------------------------------------------


@case(forms="step", serves=True)
def a_window_of_tensors_that_the_loop_empties():
    window = deque(maxlen=3)

    def step(x):
        window.append(x * 2)
        return window[0] + window[-1]

    return Play(step, [window], {7: window.clear}, singles(14))


def _appends(read: Any):
    kept = []

    def step(x):
        kept.append(x * 2)
        return read(kept) + 1

    def clear():
        kept.clear()

    def replace():
        kept[0] = torch.ones(5, 4)

    return Play(step, [kept], {5: replace, 8: clear, 12: clear}, singles(18))


case.rows(
    {
        "the_last_of_a_list_that_grows": lambda: _appends(lambda kept: kept[-1]),
        "the_last_but_one_of_a_list_that_grows": lambda: _appends(
            lambda kept: kept[-2] if kept[1:] else kept[-1]
        ),
        "all_of_a_list_that_grows": lambda: _appends(lambda kept: sum(kept)),
    },
    forms="step",
)


@case(forms="step", serves=True)
def a_window_of_numbers_that_goes_by_its_last():
    window = deque([1, 2], maxlen=2)

    def step(x):
        last = window[-1]
        window.append(3 - last)
        return x * last + 1

    return Play(step, [window], {}, singles(10))


@case(forms="step", serves=True)
def a_list_that_grows_at_its_front():
    numbers = [1]

    def step(x):
        first = numbers[0]
        numbers.insert(0, 3 - first)
        del numbers[1:]
        return x * first

    return Play(step, [numbers], {}, singles(10))


# --- other lists, and what is in them -------------------------------------------------------------


@case(forms="step", serves=True)
def objects_that_change_places_and_numbers():
    things = [SimpleNamespace(k=1), SimpleNamespace(k=2)]

    def step(x):
        things.reverse()
        return x * things[0].k

    def put(k):
        return lambda: setattr(things[0], "k", k)

    return Play(step, [things], {5: put(1), 9: put(5), 11: put(3)}, singles(18))


@case(forms="step", serves=True)
def a_new_list_each_time():
    held = SimpleNamespace(c=[1, 2])

    def step(x):
        held.c = [3 - c for c in held.c]
        return x * held.c[0]

    return Play(step, [held], {}, singles(10))


@case(forms="step", serves=True)
def a_counter_that_the_loop_clears():
    held = SimpleNamespace(calls=Counter())

    def step(x):
        held.calls["all"] += 1
        return x * 2

    return Play(step, [held], {6: lambda: held.calls.clear()}, singles(12))


@case(forms="step", serves=True)
def a_count_in_one_of_two_branches():
    held = SimpleNamespace(steps=0)

    def step(x, update):
        if update:
            held.steps += 1
        return x * 2

    return Play(step, [held], {}, [(torch.randn(3), n % 2 == 1) for n in range(12)])


# --- which object it is ---------------------------------------------------------------------------


@case(forms="step", serves=True)
def one_tensor_under_two_names():
    one = torch.zeros(3)
    held = SimpleNamespace(a=one, b=one)

    def step(x):
        return x * (2 if held.a is held.b else 1)

    before = {5: setting(held, "b", torch.zeros(3)), 9: setting(held, "b", one)}
    return Play(step, [held], before, singles(14))


@case(forms="step", serves=True)
def one_tensor_in_two_variables():
    one = torch.zeros(3)
    held = SimpleNamespace(a=one, b=torch.zeros(3))

    def step(x):
        left, right = held.a, held.b
        return x * (2 if left is not right else 1)

    return Play(step, [held], {5: setting(held, "b", one)}, singles(10))


@case(forms="step", serves=True)
def one_list_under_two_names():
    one = [1]
    held = SimpleNamespace(a=one, b=[1])

    def step(x):
        return x * (2 if held.a is held.b else 1)

    return Play(step, [held], {5: setting(held, "b", one)}, singles(10))


@case(forms="step")
def an_argument_that_is_the_last_one():
    held = SimpleNamespace(last=None, doubled=None)

    def step(x, y):
        if x is not held.last:
            held.last, held.doubled = x, x * y
        return held.doubled + y

    first = [(torch.randn(3), torch.randn(3)) for _ in range(7)]
    again = [(first[-1][0], torch.randn(3)) for _ in range(2)]
    return Play(step, [held], {}, [*first, *again, *first[:3]])


@case(forms="step", serves=True)
def the_rows_that_a_slice_tells():
    held = SimpleNamespace(rows=slice(0, 2))
    before = {5: setting(held, "rows", slice(1, 3)), 9: setting(held, "rows", slice(0, 2))}
    return Play(lambda x: x[held.rows] * 2, [], before, singles(14))


# --- functions and arguments ----------------------------------------------------------------------


def _function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    return Twice


def _applied(attribute, other):
    function, weight = _function(), torch.ones(3, requires_grad=True)
    there = function.__dict__[attribute]

    def step(x):
        weight.grad = None
        function.apply(weight * x).sum().backward()
        return weight.grad * 1

    before = {
        4: lambda: setattr(function, attribute, staticmethod(other)),
        8: lambda: setattr(function, attribute, there),
    }
    return Play(step, [weight], before, singles(12, 3))


@case(forms="step", serves=True)
def attributes_put_on_arguments():
    calls = singles(8, 3)

    def step(x):
        x.tag, x.mask = 3, x > 0
        return x * 2

    return Play(step, [calls], {}, calls)


def _sized(x: Any) -> Play:
    class Sized(nn.Linear):
        def forward(self, rows: Any) -> Any:
            self.rows = len(rows)
            assert self.rows == rows.shape[0]
            return super().forward(rows)

    model = Sized(4, 2)
    before = {5: setting(model, "rows", 0), 8: lambda: delattr(model, "rows")}
    return Play(lambda rows: model(rows), [model, lambda: vars(model).get("rows")], before, x)


case.rows(
    {
        "another_backward_of_a_function": lambda: _applied("backward", lambda ctx, grad: grad * 7),
        "another_forward_of_a_function": lambda: _applied("forward", lambda ctx, x: x * 5),
        "an_attribute_that_a_module_writes_first": lambda: _sized(singles(12)),
    },
    forms="step",
    serves=True,
)


@case(forms="step", serves=True)
def an_attribute_that_is_another_one_in_each_branch():
    one, other = torch.randn(5, 4), torch.randn(3, 4)
    return _sized([(one + n if n % 3 else other + n,) for n in range(16)])


@case(forms="step", serves=True)
def an_attribute_that_a_module_takes_away_again():
    class Brief(nn.Linear):
        def forward(self, x: Any) -> Any:
            self.factor = 3
            found = super().forward(x) * self.factor
            del self.factor
            return found

    model = Brief(4, 2)
    watched = [model, lambda: "factor" in vars(model)]
    return Play(lambda x: model(x), watched, {5: setting(model, "factor", 3)}, singles(10))


@case(forms="step", serves=True)
def a_module_that_is_made_in_each_call():
    model = nn.Linear(4, 2)

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            return self.inner(x) * self.factor

    def step(x):
        around = Around()
        around.factor = 2
        loss = around(x).sum()
        loss.backward()
        return loss

    return Play(step, [model], {}, singles(10))


@pytest.mark.parametrize("case", case)
def test_windows(case):
    case.check()
