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

from tests.hostile.kit import Cases
from tests.hostile.plays import (
    Play,
    singles,
)
from torchgraph.errors import DataDependent, NoProgram

case = Cases()
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
def named_tuples_and_dataclasses():
    return returns(lambda x: (Pair(x * 2, None), Out(x.sum(), x + 1, (x * 3, "text"))))


@case
def mappings():
    def give(x):
        counted = defaultdict(list, a=[x * 2])
        return OrderedDict(b=x + 1, a=x.sum()), counted, {1: x * 3, (2, "k"): None, None: 5}

    return returns(give)


@case
def odd_containers():
    return returns(lambda x: (deque([x * 2], maxlen=3), SimpleNamespace(loss=x.sum(), n=3)))


@case
def a_user_dict():
    return returns(lambda x: UserDict(loss=x.sum()))


@case
def a_set_of_tensors():
    return returns(lambda x: len({x * 1, x * 2}))


@case
def a_mapping_proxy():
    return returns(lambda x: dict(MappingProxyType({"a": x * 2})))


@case
def plain_values():
    return returns(lambda x: (None, True, 3, 2.5, "text", b"bytes", 1j, x.shape, x.dtype, ...))


@case
def nothing():
    held = torch.zeros(())
    return returns(lambda x: held.add_(x.sum()) and None, [held])


@case
def a_number_of_the_shape():
    calls = [(torch.randn(3 + number % 2, 4),) for number in range(12)]
    return returns(lambda x: (len(x), x.numel(), str(x.shape)), calls=calls)


@case
def a_module_and_a_function():
    model = nn.Linear(4, 2)
    return returns(lambda x: (model(x), type(model).__name__, len(list(model.parameters()))))


@case
def a_distribution():
    return returns(lambda x: torch.distributions.Normal(x.mean(), 1.0).loc)


@case
def max_with_its_indices():
    return returns(lambda x: (x.max(1), x.sort(0), torch.topk(x, 2), x.unique().shape[0] > 0))


@case
def an_object_made_anew():
    class Result:
        def __init__(self, value):
            self.value = value
            self.doubled = value * 2

    return returns(lambda x: Result(x.sum()))


@case(forms="step")
def an_object_that_is_kept():
    result = SimpleNamespace(loss=None)

    def give(x):
        result.loss = x.sum()
        return result

    return returns(give, [result])


@case(forms="step")
def a_list_that_is_kept():
    results = [None, None]

    def give(x):
        results[0] = x.sum()
        results[1] = x.sum() * 2
        return results

    return returns(give, [results])


@case(forms="step")
def a_list_that_grows_outside():
    log = []

    def give(x):
        log.append(x.sum())
        return torch.stack(log[-1:])

    return returns(give, [log])


@case
def a_list_that_grows_and_is_read():
    log = []

    def give(x):
        log.append(x.sum())
        return torch.stack(log).mean()

    return returns(give, [log])


@case(forms="step")
def a_dict_that_is_filled_by_name():
    record = {}

    def give(x):
        record["loss"] = x.sum()
        record.setdefault("first", x.sum() * 2)
        return x + 1

    return returns(give, [record])


@case(forms="step")
def a_list_cleared_by_the_caller():
    log = []

    def give(x):
        log.append(x.sum())
        return x + 1

    return returns(give, [log], dict.fromkeys((3, 5, 6), log.clear))


@case(forms="step")
def a_list_replaced_by_the_caller():
    held = SimpleNamespace(log=[])

    def give(x):
        held.log.append(x.sum())
        return x + 1

    return returns(give, [held], {n: lambda: setattr(held, "log", []) for n in (3, 5, 6)})


@case(forms="step")
def a_deque_with_a_length():
    log = deque(maxlen=3)

    def give(x):
        log.append(x.sum())
        return x + 1

    return returns(give, [log])


@case(forms="step")
def a_dict_of_lists_that_grow():
    log = defaultdict(list)

    def give(x):
        log["sum"].append(x.sum())
        log["mean"].append(x.mean())
        return x + 1

    return returns(give, [log])


@case(forms="step")
def numbers_added_up_as_tensors():
    held = SimpleNamespace(total=0.0)

    def give(x):
        held.total += x.sum()
        return x + 1

    return returns(give, [held], {6: lambda: setattr(held, "total", 0.0)}, singles(12))


# --- values ---------------------------------------------------------------------------------------


@case
def item_returned():
    return returns(lambda x: x.sum().item())


@case
def item_of_what_does_not_move():
    constant = torch.tensor(3.0)
    return returns(lambda x: (x + 1, constant.item()), before={5: lambda: constant.add_(1)})


@case(refused=DataDependent)
def text_of_a_tensor():
    return returns(lambda x: (x + 1, f"{x.sum():.3f}"))


@case(refused=DataDependent)
def repr_of_a_small_tensor():
    held = torch.zeros(2)
    return returns(lambda x: (x + 1, repr(held)), before={5: lambda: held.add_(1)})


@case
def tolist_returned():
    return returns(lambda x: x.argmax(1).tolist())


@case
def tolist_of_what_seldom_moves():
    calls = [(torch.tensor([0.0, float(n >= 5)]),) for n in range(12)]
    return returns(lambda x: (x * 2, x.argmax(0).tolist(), bool(x[1])), calls=calls)


@case
def length_of_a_selection():
    calls = [(torch.arange(6.0) + (n > 4),) for n in range(12)]
    return returns(lambda x: (x[x > 2], int((x > 2).sum())), calls=calls)


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


@case(forms="step")
def an_average_that_begins_with_none():
    held = SimpleNamespace(average=None)

    def give(x):
        held.average = x if held.average is None else 0.9 * held.average + 0.1 * x
        return held.average

    return returns(give, [held])


@case(forms="step")
def a_new_dict_every_time():
    held = SimpleNamespace(last={})

    def give(x):
        held.last = {"sum": x.sum(), "mean": x.mean()}
        return x + 1

    return returns(give, [held])


@case(forms="step")
def a_new_tuple_every_time():
    held = SimpleNamespace(last=())

    def give(x):
        held.last = (x.sum(), {"mean": x.mean()})
        return x + 1

    return returns(give, [held])


@pytest.mark.parametrize("case", case)
def test_structures(case):
    case.check()
