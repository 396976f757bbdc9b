"""Arguments: their layout, what they share, what holds them, and what the step does to them."""

from __future__ import annotations

import enum
from collections import UserDict, deque, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.hostile.kit import Cases, Play, net, pairs, singles
from torchgraph.errors import NoProgram, SharedMemory, UnsupportedInput

case = Cases()
Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - what people still write


class Colour(enum.Enum):
    """Of an argument."""

    RED = 1
    BLUE = 2


@dataclass
class Batch:
    """As loaders have them."""

    x: torch.Tensor
    y: torch.Tensor | None = None
    meta: dict[str, Any] = field(default_factory=dict)


def of(step, give, number=10, watched=()):
    """``step`` of what ``give(n)`` gives for each call: a tuple of arguments."""
    return Play(step, watched, calls=[give(n) for n in range(number)])


def base(n, *shape):
    """Other values in each call."""
    return torch.randn(shape or (5, 4)) + n


# --- layout ---------------------------------------------------------------------------------------


@case
def another_shape_every_time():
    return of(lambda x: x.sum(0) * len(x), lambda n: (base(n, 3 + n % 3, 4),), 15)


@case
def other_strides_later():
    return of(
        lambda x: (x * 2, x.view(-1) if x.is_contiguous() else x.t()),
        lambda n: (base(n, 4, 4).t() if n >= 5 else base(n, 4, 4),),
    )


@case
def every_second_row():
    return of(lambda x: x.cumsum(0), lambda n: (base(n, 10, 4)[:: 1 + (n >= 5)][:5],))


@case
def expanded():
    return of(
        lambda x: x.sum(), lambda n: (base(n, 1, 4).expand(5, 4) if n >= 4 else base(n, 5, 4),)
    )


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
def no_dimensions():
    return of(lambda x: x * 2 + 1, lambda n: (base(n, 1)[0] if n < 5 else base(n, 1),))


@case
def empty():
    return of(lambda x: (x.sum(), x.mean(), x * 2), lambda n: (base(n, 5 if n < 5 else 0, 4),))


@case
def other_dtypes():
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
    return of(lambda x: (x + x, x.sum()), lambda n: (base(n).to(kinds[n // 5]),), 25)


@case
def views_of_other_dtypes():
    return of(lambda x: x.view(torch.int32) + 1, lambda n: (base(n),))


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


@case
def an_offset_into_memory():
    return of(lambda x: x * 2, lambda n: (base(n, 9, 4)[n % 3 : n % 3 + 5],))


@case
def requires_grad():
    return of(
        lambda x: (x * 2, torch.is_grad_enabled() and x.requires_grad),
        lambda n: (base(n).requires_grad_(n >= 5),),
    )


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


@case(refused=NoProgram, fault="the refused call has added to the gradients")
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
def a_subclass_of_tensor():
    class Named(torch.Tensor):
        pass

    return of(lambda x: x * 2, lambda n: (base(n).as_subclass(Named) if n >= 5 else base(n),))


@case(fault="what the subclass does is not in the program")
def a_subclass_that_computes_otherwise():
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out * 2 if func is torch.tanh else out

    return of(
        lambda x: torch.tanh(x), lambda n: (base(n).as_subclass(Doubled) if n >= 5 else base(n),)
    )


@case
def a_parameter_for_a_tensor():
    return of(
        lambda x: (x * 2, isinstance(x, nn.Parameter)),
        lambda n: (nn.Parameter(base(n)) if n >= 5 else base(n),),
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
def a_view_of_the_other():
    def give(n):
        x = base(n)
        return x, (x[1:3] if n >= 5 else x[1:3].clone())

    return of(lambda x, row: (x.add_(1), row * 2), give)


@case
def views_of_one_base():
    def give(n):
        whole = base(n, 8)
        return (whole[:5], whole[3:]) if n >= 5 else (whole[:5], whole[3:].clone())

    return of(lambda x, y: (x.mul_(2), y + 1), give)


@case(fault="the fourth call is refused")
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
def one_batch_that_is_refilled():
    x = torch.zeros(5, 4)
    play = Play(lambda x: x * 2, calls=[(x,)] * 10)
    play.before = {n: lambda: x.normal_() for n in range(10)}  # noqa: C420
    return play


@case
def over_an_array():
    array = np.zeros((5, 4), dtype=np.float32)

    def refill():
        array[:] += 1

    play = Play(lambda x: x.add_(1), [array], calls=[(torch.from_numpy(array),) for _ in range(10)])
    play.before = {n: refill for n in range(10)}  # noqa: C420
    return play


# --- what holds them ------------------------------------------------------------------------------


@case
def a_dataclass():
    return of(
        lambda b: b.x * b.meta.get("scale", 1.0),
        lambda n: (Batch(base(n), None, {"scale": 2.0} if n >= 5 else {}),),
    )


@case
def a_dataclass_with_a_tensor_for_none():
    return of(
        lambda b: b.x if b.y is None else b.x * b.y,
        lambda n: (Batch(base(n), base(n) if n >= 5 else None),),
    )


@case
def a_named_tuple_or_a_tuple():
    return of(
        lambda b: b.x * 2 if hasattr(b, "x") else b[0] + 1,
        lambda n: ((Pair if n >= 5 else lambda *a: a)(base(n), 1),),
    )


@case
def a_dict_in_another_order():
    def step(batch):
        return [value * n for n, value in enumerate(batch.values())]

    return of(
        step, lambda n: ({"a": base(n), "b": base(n)} if n < 5 else {"b": base(n), "a": base(n)},)
    )


@case
def a_user_dict():
    return of(lambda b: b["x"] * 2, lambda n: (UserDict(x=base(n)),))


@case
def a_deque():
    return of(lambda b: sum(b), lambda n: (deque([base(n)] * (1 + (n >= 5)), maxlen=4),))


@case
def a_namespace_with_a_number():
    return of(
        lambda b: b.x * b.scale, lambda n: (SimpleNamespace(x=base(n), scale=1.0 + (n >= 5)),)
    )


@case
def a_plain_object_with_a_number():
    class Holder:
        pass

    holder = Holder()
    holder.x, holder.scale = torch.ones(4), 1.0
    play = Play(lambda b: b.x * b.scale, calls=[(holder,)] * 12)
    play.before = {
        5: lambda: setattr(holder, "scale", 2.0),
        7: lambda: setattr(holder, "x", torch.zeros(4)),
    }
    return play


@case
def an_object_with_slots():
    class Holder:
        __slots__ = ("x",)

        def __init__(self, x):
            self.x = x

    return of(lambda b: b.x * 2, lambda n: (Holder(base(n)),))


@case
def an_object_with_a_private_tensor():
    class Holder:
        def __init__(self, x):
            self._x = x

        @property
        def doubled(self):
            return self._x * 2

    return of(lambda b: b.doubled, lambda n: (Holder(base(n)),))


@case
def plain_values():
    kinds = [
        1,
        1.0,
        True,
        "a",
        None,
        Colour.RED,
        torch.float32,
        slice(1, 3),
        (1, 2),
        b"x",
        range(3),
    ]
    return of(lambda x, kind: (x * 2, str(kind)), lambda n: (base(n), kinds[n // 4]), 44)


@case
def numbers_of_numpy():
    return of(lambda x, by: x * by, lambda n: (base(n), np.float32(1.0 + (n >= 5))))


@case
def an_array_as_an_argument():
    return of(
        lambda x, by: x * torch.from_numpy(by), lambda n: (base(n), np.full(4, n, dtype=np.float32))
    )


@case
def a_function_as_an_argument():
    return of(lambda x, f: f(x), lambda n: (base(n), torch.relu if n < 5 else torch.tanh))


@case
def a_closure_as_an_argument():
    def by(factor):
        return lambda x: x * factor

    return of(lambda x, f: f(x), lambda n: (base(n), by(1.0 + (n >= 5))), 12)


@case
def a_module_as_an_argument():
    first, second = net(), net()
    return of(lambda x, model: model(x), lambda n: (base(n), first if n < 5 else second))


@case
def a_list_of_another_length():
    return of(
        lambda xs: sum(x * n for n, x in enumerate(xs)), lambda n: ([base(n)] * (2 + n // 5),), 15
    )


@case(refused=UnsupportedInput)
def a_generator_of_tensors():
    return of(lambda xs: sum(xs), lambda n: ((base(n) for _ in range(2)),))


# --- what the step does to them -------------------------------------------------------------------


@case
def a_dict_that_is_written():
    def step(batch):
        batch["doubled"] = batch["x"] * 2
        batch["seen"] = True
        return batch["doubled"].sum()

    return of(step, lambda n: ({"x": base(n)},))


@case
def a_dict_that_is_popped():
    def step(batch):
        labels = batch.pop("labels")
        return batch["x"] * labels

    return of(step, lambda n: ({"x": base(n), "labels": base(n)},))


@case
def a_list_that_grows():
    return of(lambda xs: xs.append(xs[0] * 2), lambda n: ([base(n)],))


@case
def one_list_that_grows_over_the_calls():
    xs = [torch.ones(4)]
    return Play(lambda xs: xs.append(xs[-1] * 2), [xs], calls=[(xs,)] * 14)


@case
def an_object_that_is_written():
    def step(batch):
        batch.loss = batch.x.sum()
        batch.x = batch.x * 2
        return batch

    return of(step, lambda n: (SimpleNamespace(x=base(n)),))


@case
def in_place_in_all_forms():
    def step(x):
        x.add_(1)
        x[1:3] *= 2
        x[x > 1] = 0
        x[:, 0].copy_(x[:, 1])
        x.t().mul_(0.5)
        functional.relu_(x)
        return x.sum()

    return of(step, lambda n: (base(n),))


@case
def transposed_in_place():
    return of(lambda x: x.t_().sum(0), lambda n: (base(n),))


@case
def resized_in_place():
    return of(lambda x: x.resize_(2, 4).sum(), lambda n: (base(n),))


@case
def unsqueezed_in_place():
    return of(lambda x: (x.unsqueeze_(0), x.squeeze_(0).mul_(2))[1].sum(), lambda n: (base(n),))


@case
def data_of_an_argument():
    def step(x):
        x.data = x.data * 2
        return x.sum()

    return of(step, lambda n: (base(n),))


@case
def an_attribute_set_on_an_argument():
    def step(x):
        x.seen = True
        return x * 2

    return of(step, lambda n: (base(n),))


@case
def swapped_arguments_in_place():
    def step(x, y):
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    return of(step, lambda n: (base(n), base(n)))


@case
def padded_pairs():
    return Play(
        lambda x, y: torch.cat([x, functional.pad(y, (0, 2))]), calls=pairs(9) + pairs(5, rows=3)
    )


@case
def one_argument_for_all():
    return Play(
        lambda *args: sum(args), calls=[(*one, *one[: n % 2]) for n, one in enumerate(singles(12))]
    )


@pytest.mark.parametrize("case", case)
def test_inputs(case):
    case.check()
