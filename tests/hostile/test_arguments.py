"""What holds the arguments, and what a step does to them."""

from __future__ import annotations

import enum
from collections import deque, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.cases.plays import Play, base, net, of, singles
from tests.cases.table import Table
from torchgraph.errors import UnsupportedInput

case = Table("step graph", says=None)
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


# --- what holds them ------------------------------------------------------------------------------


@case
def a_dict_in_another_order():
    def step(batch):
        return [value * n for n, value in enumerate(batch.values())]

    return of(
        step, lambda n: ({"a": base(n), "b": base(n)} if n < 5 else {"b": base(n), "a": base(n)},)
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


case.rows(
    {
        "a_dataclass": lambda: of(
            lambda b: b.x * b.meta.get("scale", 1.0),
            lambda n: (Batch(base(n), None, {"scale": 2.0} if n >= 5 else {}),),
        ),
        "a_named_tuple_or_a_tuple": lambda: of(
            lambda b: b.x * 2 if hasattr(b, "x") else b[0] + 1,
            lambda n: ((Pair if n >= 5 else lambda *a: a)(base(n), 1),),
        ),
        "a_deque": lambda: of(
            lambda b: sum(b), lambda n: (deque([base(n)] * (1 + (n >= 5)), maxlen=4),)
        ),
        "numbers_of_numpy": lambda: of(
            lambda x, by: x * by, lambda n: (base(n), np.float32(1.0 + (n >= 5)))
        ),
        "an_array_as_an_argument": lambda: of(
            lambda x, by: x * torch.from_numpy(by),
            lambda n: (base(n), np.full(4, n, dtype=np.float32)),
        ),
    },
)


@case
def a_closure_as_an_argument():
    def by(factor):
        return lambda x: x * factor

    return of(lambda x, f: f(x), lambda n: (base(n), by(1.0 + (n >= 5))), 12)


@case
def a_module_as_an_argument():
    first, second = net(), net()
    return of(lambda x, model: model(x), lambda n: (base(n), first if n < 5 else second))


@case(refused=UnsupportedInput)
def a_generator_of_tensors():
    return of(lambda xs: sum(xs), lambda n: ((base(n) for _ in range(2)),))


# --- what the step does to them -------------------------------------------------------------------


@case
def a_dict_that_is_popped():
    def step(batch):
        labels = batch.pop("labels")
        return batch["x"] * labels

    return of(step, lambda n: ({"x": base(n), "labels": base(n)},))


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
def data_of_an_argument():
    def step(x):
        x.data = x.data * 2
        return x.sum()

    return of(step, lambda n: (base(n),))


case.rows(
    {
        "a_list_that_grows": lambda: of(lambda xs: xs.append(xs[0] * 2), lambda n: ([base(n)],)),
        "transposed_in_place": lambda: of(lambda x: x.t_().sum(0), lambda n: (base(n),)),
        "resized_in_place": lambda: of(lambda x: x.resize_(2, 4).sum(), lambda n: (base(n),)),
        "one_argument_for_all": lambda: Play(
            lambda *args: sum(args),
            calls=[(*one, *one[: n % 2]) for n, one in enumerate(singles(12))],
        ),
    },
)


@pytest.mark.parametrize("case", case)
def test_arguments(case):
    case.check()
