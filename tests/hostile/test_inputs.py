"""Arguments: their layout, what they share, what holds them, and what the step does to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases.plays import Play, base, net, of
from tests.cases.table import Table
from torchgraph.errors import SharedMemory, UnsupportedInput

case = Table("step graph", says=None)


# --- layout ---------------------------------------------------------------------------------------


@case
def expanded_and_written():
    def step(x):
        try:
            return x.add_(1).sum()
        except RuntimeError:
            return x.sum()

    return of(step, lambda n: (base(n, 1, 4).expand(5, 4) if n >= 4 else base(n, 5, 4),))


@case
def channels_last():
    model = nn.Conv2d(3, 2, 2)

    def give(n):
        x = base(n, 2, 3, 4, 4)
        return (x.to(memory_format=torch.channels_last) if n >= 5 else x,)

    return of(lambda x: model(x), give, watched=[model])


@case
def other_dtypes():
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
    return of(lambda x: (x + x, x.sum()), lambda n: (base(n).to(kinds[n // 5]),), 25)


@case
def conjugated():
    def give(n):
        x = torch.complex(base(n), base(n))
        return (x.conj() if n >= 5 else x,)

    return of(lambda x: (x * 2, x.imag, x.abs()), give)


@case
def negated():
    def give(n):
        x = torch.complex(base(n), base(n))
        return (x.conj().imag if n >= 5 else x.imag,)

    return of(lambda x: (x * 2, x.neg()), give)


@case(forms="step")
def requires_grad_and_backward():
    def step(x):
        loss = x.square().sum()
        if loss.requires_grad:
            loss.backward()
        return loss

    return of(step, lambda n: (base(n).requires_grad_(n in (4, 5, 6, 7)),))


@case(refused=UnsupportedInput, forms="step")
def with_a_history():
    weight = torch.ones(4, requires_grad=True)
    return of(lambda x: x.sum().backward(), lambda n: (base(n) * weight,), watched=[weight])


@case(forms="step")
def a_parameter_as_an_argument():
    model = net()

    def step(weight, x):
        (x @ weight.t()).sum().backward()
        return weight.grad

    return of(step, lambda n: (model[0].weight, base(n)), watched=[model])


@case(refused=UnsupportedInput)
def sparse():
    return of(
        lambda x: torch.sparse.mm(x, torch.ones(4, 2)), lambda n: (base(n).relu().to_sparse(),)
    )


@case
def a_subclass_that_computes_otherwise():
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out * 2 if func is torch.tanh else out

    return of(
        lambda x: torch.tanh(x), lambda n: (base(n).as_subclass(Doubled) if n >= 5 else base(n),)
    )


case.rows(
    {
        "another_shape_every_time": lambda: of(
            lambda x: x.sum(0) * len(x), lambda n: (base(n, 3 + n % 3, 4),), 15
        ),
        "other_strides_later": lambda: of(
            lambda x: (x * 2, x.view(-1) if x.is_contiguous() else x.t()),
            lambda n: (base(n, 4, 4).t() if n >= 5 else base(n, 4, 4),),
        ),
        "empty": lambda: of(
            lambda x: (x.sum(), x.mean(), x * 2), lambda n: (base(n, 5 if n < 5 else 0, 4),)
        ),
        "views_of_other_dtypes": lambda: of(
            lambda x: x.view(torch.int32) + 1, lambda n: (base(n),)
        ),
        "a_parameter_for_a_tensor": lambda: of(
            lambda x: (x * 2, isinstance(x, nn.Parameter)),
            lambda n: (nn.Parameter(base(n)) if n >= 5 else base(n),),
        ),
    },
)


# --- what is shared -------------------------------------------------------------------------------


@case
def the_same_tensor_twice():
    def give(n):
        x = base(n)
        return x, x if n >= 5 else base(n)

    return of(lambda x, y: (x.add_(1), y.mul_(2), x + y), give)


@case(refused=SharedMemory)
def not_the_same_any_more():
    def give(n):
        x = base(n)
        return x, x if n < 5 else x.clone()

    return of(lambda x, y: (x.add_(1), y * 2), give)


@case
def views_of_one_base_at_other_places():
    def give(n):
        whole = base(n, 12)
        return whole[:5], whole[3 + n % 3 : 8 + n % 3]

    return of(lambda x, y: (x.mul_(2), y + 1), give, 14)


@case
def whether_it_is_the_same_object():
    def give(n):
        x = base(n)
        return x, x if n >= 5 else x.clone()

    return of(lambda x, y: x * 2 if x is y else x + y, give)


@case
def a_view_of_a_parameter():
    model = net()

    def step(row, x):
        with torch.no_grad():
            model[0].weight.mul_(0.9)
        return model(x) + row.sum()

    def give(n):
        row = model[0].weight.detach()[1]
        return row if n >= 5 else torch.ones(4), base(n)

    return of(step, give, watched=[model])


@case
def the_buffer_itself():
    model = nn.BatchNorm1d(4)

    def step(mean, x):
        return model(x) + mean

    return of(
        step, lambda n: (model.running_mean if n >= 5 else torch.zeros(4), base(n)), watched=[model]
    )


@case
def over_an_array():
    array = np.zeros((5, 4), dtype=np.float32)

    def refill():
        array[:] += 1

    play = Play(lambda x: x.add_(1), [array], calls=[(torch.from_numpy(array),) for _ in range(10)])
    play.before = dict.fromkeys(range(10), refill)
    return play


@pytest.mark.parametrize("case", case)
def test_inputs(case):
    case.check()
