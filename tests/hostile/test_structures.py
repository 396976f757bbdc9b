"""Structures and plain values that steps return, or fill for the caller."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles, trains
from tests.cases.table import Table
from torchgraph.errors import DataDependent, NoProgram

case = Table("step graph", says=None)
Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - what people still write


@dataclass
class Out:
    """As Hugging Face has them."""

    loss: Any = None
    logits: Any = None
    hidden: tuple = ()


def returns(give, watched=(), before=None, calls=None):
    """A step that returns what ``give`` does, and nothing more."""
    return Play(give, watched, before or {}, calls or singles())


# --- structures -----------------------------------------------------------------------------------


@case
def mappings():
    def give(x):
        counted = defaultdict(list, a=[x * 2])
        return OrderedDict(b=x + 1, a=x.sum()), counted, {1: x * 3, (2, "k"): None, None: 5}

    return returns(give)


@case
def nothing():
    held = torch.zeros(())
    return returns(lambda x: held.add_(x.sum()) and None, [held])


case.rows(
    {
        "named_tuples_and_dataclasses": lambda: returns(
            lambda x: (Pair(x * 2, None), Out(x.sum(), x + 1, (x * 3, "text")))
        ),
        "odd_containers": lambda: returns(
            lambda x: (deque([x * 2], maxlen=3), SimpleNamespace(loss=x.sum(), n=3))
        ),
        "a_user_dict": lambda: returns(lambda x: UserDict(loss=x.sum())),
        "a_set_of_tensors": lambda: returns(lambda x: len({x * 1, x * 2})),
        "a_mapping_proxy": lambda: returns(lambda x: dict(MappingProxyType({"a": x * 2}))),
        "plain_values": lambda: returns(
            lambda x: (None, True, 3, 2.5, "text", b"bytes", 1j, x.shape, x.dtype, ...)
        ),
        "a_distribution": lambda: returns(lambda x: torch.distributions.Normal(x.mean(), 1.0).loc),
        "max_with_its_indices": lambda: returns(
            lambda x: (x.max(1), x.sort(0), torch.topk(x, 2), x.unique().shape[0] > 0)
        ),
    },
)


@case
def an_object_made_anew():
    class Result:
        def __init__(self, value):
            self.value = value
            self.doubled = value * 2

    return returns(lambda x: Result(x.sum()))


@case(forms="step")
def a_dict_that_is_filled_by_name():
    record = {}

    def give(x):
        record["loss"] = x.sum()
        record.setdefault("first", x.sum() * 2)
        return x + 1

    return returns(give, [record])


@case(forms="step")
def a_list_replaced_by_the_caller():
    held = SimpleNamespace(log=[])

    def give(x):
        held.log.append(x.sum())
        return x + 1

    return returns(give, [held], {n: lambda: setattr(held, "log", []) for n in (3, 5, 6)})


@case(forms="step")
def numbers_added_up_as_tensors():
    held = SimpleNamespace(total=0.0)

    def give(x):
        held.total += x.sum()
        return x + 1

    return returns(give, [held], {6: lambda: setattr(held, "total", 0.0)}, singles(12))


# --- values ---------------------------------------------------------------------------------------


@case
def item_of_what_does_not_move():
    constant = torch.tensor(3.0)
    return returns(lambda x: (x + 1, constant.item()), before={5: lambda: constant.add_(1)})


@case(refused=DataDependent)
def text_of_a_tensor():
    return returns(lambda x: (x + 1, f"{x.sum():.3f}"))


case.rows(
    {
        "item_returned": lambda: returns(lambda x: x.sum().item()),
        "tolist_returned": lambda: returns(lambda x: x.argmax(1).tolist()),
    },
)


@case
def tolist_of_what_seldom_moves():
    calls = [(torch.tensor([0.0, float(n >= 5)]),) for n in range(12)]
    return returns(lambda x: (x * 2, x.argmax(0).tolist(), bool(x[1])), calls=calls)


@case
def numpy_of_a_detached_result():
    def give(x):
        out = x * 2
        return out.detach().sum()

    play = returns(give)
    kept = []
    play.watched = [kept]

    def around(call):
        out = call()
        kept.append(np.asarray(out))
        return out

    play.around = around
    return play


# --- places ---------------------------------------------------------------------------------------


@case(forms="step", refused=NoProgram)
def an_attribute_of_a_class():
    class Holder:
        last = torch.zeros(())

    def give(x):
        Holder.last = x.sum()
        return x + 1

    return returns(give, [lambda: Holder.last])


@case(forms="step")
def an_attribute_of_a_function():
    def give(x):
        give.last = x.sum()
        return x + 1

    return returns(give, [lambda: vars(give)])


@case(forms="step")
def an_attribute_of_a_module():
    class Keeps(nn.Module):
        def forward(self, x):
            self.last = x.sum()
            return x + 1

    model = Keeps()
    return returns(lambda x: model(x), [model, lambda: vars(model).get("last")])


@case(forms="step")
def a_list_of_a_module_emptied_and_filled():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.losses = []

        def forward(self, x):
            self.losses.append(x.sum())
            return x + 1

    model = Keeps()

    def give(x):
        model.losses.clear()
        return model(x) + sum(model.losses)

    return returns(give, [lambda: model.losses])


@case
def losses_collected_and_cleared():
    losses = []

    def give(x):
        losses.append(x.sum())
        total = x.mean() + sum(losses)
        losses.clear()
        return total

    return returns(give, [losses])


class Sliced(nn.Module):
    """It is indexed by a tuple of slices, which have no hash before Python 3.12."""

    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.randn(4, 4))

    def __getitem__(self, index):
        return self.t[index]


weights = {"a": 1.0, "b": 2.0}
k = {"left": "over"}


@case(serves=True)
def keys_without_a_hash():
    """A slice; and a global of the name that a comprehension gives its own variable."""
    model = Sliced()

    def loss(x, y):
        where = (slice(None), slice(None))
        losses = {"a": (x @ model[where]).sum(), "b": model.t.square().sum()}
        return sum(weights[k] * losses[k] for k in losses)

    return trains(model, loss)


@pytest.mark.parametrize("case", case)
def test_structures(case):
    case.check()
