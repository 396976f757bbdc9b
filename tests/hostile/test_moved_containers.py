"""Lists, dicts, deques and tuples that a step or its loop moves: their items, order, length."""

from __future__ import annotations

import array
from collections import Counter, OrderedDict, defaultdict, namedtuple
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases.plays import Play, moves, setting, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


def put(holder: Any, key: Any, value: Any) -> Any:
    """What puts a value into a place of a container."""
    return lambda: holder.__setitem__(key, value)


def other(k: Any) -> Any:
    """1, 2, 1, 2 ..., and from anything else 1."""
    return 3 - k if k in (1, 2) else 1


# --- lists of numbers -----------------------------------------------------------------------------


@case(forms="step", serves=True, slow=True)
def a_list_whose_last_is_taken_and_another_appended():
    held = [1]

    def step(x):
        found = held[0]
        held.pop()
        held.append(other(found))
        return x * found

    return moves(step, held, number=16, before5=put(held, 0, 1), before8=put(held, 0, 4))


@case(forms="step", serves=True)
def a_list_that_is_extended_and_cut():
    held = SimpleNamespace(k=[1])

    def step(x):
        found = held.k[-1]
        held.k += [other(found)]
        held.k = held.k[-1:]
        return x * found

    return moves(step, held, number=16, before7=setting(held, "k", [1, 4]))


@case(forms="step")
def a_list_that_is_eaten_and_filled_again():
    held = SimpleNamespace(k=[1, 2, 3, 4])

    def step(x):
        del held.k[0]
        if len(held.k) < 3:
            held.k = [1, 2, 3, 4]
        return x * held.k[0]

    return moves(step, held, number=18, before9=setting(held, "k", [9, 8, 7, 6]))


@case(forms="step")
def a_list_made_anew_by_a_comprehension():
    held = SimpleNamespace(k=[1, 2])

    def step(x):
        held.k = [3 - one for one in held.k]
        return x * held.k[0]

    return moves(step, held, number=20, before8=setting(held, "k", [1, 2]))


@case(forms="step")
def inner_lists_that_change_places():
    held = SimpleNamespace(k=[[1, 2], [3, 4]])

    def step(x):
        found = held.k[0][0]
        held.k[0], held.k[1] = held.k[1], held.k[0]
        held.k[0][0] = other(found)
        return x * found

    return moves(step, held, number=16, before8=lambda: held.k.reverse())


@case(forms="step")
def a_list_of_numbers_that_the_loop_clears_every_second_call():
    log = []

    def step(x):
        log.append(7)
        return x * len(log)

    return Play(step, [log], dict.fromkeys(range(0, 16, 2), log.clear), singles(16))


@case(forms="step", serves=True)
def a_list_behind_a_partial():
    held = [1]
    first = partial(lambda values, at: values[at], held, 0)

    def step(x):
        found = first()
        held[0] = other(found)
        return x * found

    one, four = put(held, 0, 1), put(held, 0, 4)
    between = {"before5": one, "before6": one, "before8": four, "before9": four}
    return moves(step, held, number=16, **between)


# --- tuples and arrays ----------------------------------------------------------------------------


@case(forms="step", serves=True)
def a_named_tuple_that_is_replaced():
    kind = namedtuple("kind", "a b")  # noqa: PYI024 - what people still write
    held = SimpleNamespace(k=kind(1, 2))

    def step(x):
        found = held.k.a
        held.k = held.k._replace(a=other(found))
        return x * found

    return moves(step, held, number=16, before8=setting(held, "k", kind(4, 2)))


@case(forms="step")
def a_tuple_that_grows():
    held = SimpleNamespace(k=())

    def step(x):
        held.k += (3,)
        return x * 2

    return moves(step, held, before8=setting(held, "k", (1,)))


@case(forms="step")
def an_array_of_numpy_that_is_written():
    held = SimpleNamespace(k=np.array([1, 2]))

    def step(x):
        found = int(held.k[0])
        held.k[0] = other(found)
        return x * found

    return moves(step, held, before6=lambda: put(held.k, 0, 1)())


@case(forms="step", serves=True)
def arrays_of_the_standard_library_that_are_written():
    numbers, text = array.array("l", [1, 2]), bytearray([1, 2])

    def step(x):
        numbers[0], text[0] = other(numbers[0]), other(text[0])
        return x * numbers[0] + text[0]

    return moves(step, lambda: (list(numbers), list(text)), before6=put(numbers, 0, 1))


# --- dicts ----------------------------------------------------------------------------------------


@case(forms="step", serves=True)
def the_order_of_a_dict():
    held = OrderedDict([("a", 0), ("bb", 0), ("ccc", 0)])

    def step(x):
        return x * len(next(iter(held)))

    first, second = (partial(held.move_to_end, name) for name in ("a", "bb"))
    return moves(step, lambda: list(held), before4=first, before7=second)


@case(forms="step", serves=True)
def the_order_of_a_dict_of_tensors_that_turns():
    held = {"a": torch.ones(1), "bb": torch.ones(1) * 2}

    def step(x):
        name = next(iter(held))
        held[name] = held.pop(name)
        return x * len(name) + held[name]

    return moves(step, held, lambda: list(held), number=16)


@case(forms="step")
def a_counter_that_is_cleared():
    held = SimpleNamespace(k=Counter())

    def step(x):
        held.k["a"] += 1
        if held.k["a"] >= 2:
            held.k.clear()
        return x * held.k["a"]

    clear, up = (lambda: held.k.clear()), (lambda: held.k.update(a=1))
    return moves(step, held, number=18, before5=clear, before6=clear, before9=up)


@case(forms="step")
def a_key_of_a_default_dict_that_comes_and_goes():
    held = defaultdict(int)

    def step(x):
        if "a" in held:
            del held["a"]
        else:
            held["a"] = 1
        return x * (len(held) + 1)

    return moves(step, held, number=20, before8=held.clear)


@case(forms="step")
def a_key_of_a_default_dict_that_is_asked_for():
    held = defaultdict(int)

    def step(x):
        before = held.get("a")
        held["a"] = x * 2
        return x * 10 if before is None else before + x

    return moves(step, held, lambda: list(held), before5=held.clear, before11=held.clear)


# --- tensors under keys that look alike -----------------------------------------------------------


@case(forms="step", serves=True)
def averages_by_module_of_which_data_chooses_one():
    first, *heads = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([p for one in (first, *heads) for p in one.parameters()], 0.02)
    held = {}

    def average(module, args):
        found = args[0].detach().square().mean()
        held[module] = held[module].mul(0.9).add(found) if module in held else found

    for one in (first, *heads):
        one.register_forward_pre_hook(average)

    def step(x):
        optimizer.zero_grad()
        hidden = torch.relu(first(x))
        loss = heads[0 if x.mean() > 0 else 1](hidden).square().mean()
        loss.backward()
        for module, size in held.items():
            if module.weight.grad is not None:
                module.weight.grad = module.weight.grad / (1 + size)
        optimizer.step()
        return loss

    signs = (1, 1, -1, 1, -1, 1, 1, -1, -1, -1, 1, -1, 1, -1, 1, 1, -1, 1, 1, 1, 1)
    calls = [(torch.rand(5, 4) * sign,) for sign in signs]
    return Play(step, [first, *heads, optimizer, lambda: list(held.values())], calls=calls)


def average_by(first: Any, second: Any) -> Play:
    """Data says which of two averages moves; both are read."""
    held = {first: torch.ones(4), second: torch.ones(4)}

    def step(x):
        key = first if x.mean() > 0 else second
        held[key] = held[key].mul(0.9).add(x.mean(0), alpha=0.1)
        return sum(one * number for number, one in enumerate(held.values(), 1))

    signs = (1, 1, 1, -1, 1, 1, -1, 1, -1, -1, 1, 1, -1, 1) * 3
    calls = [(torch.rand(5, 4) * sign,) for sign in signs]
    return Play(step, [lambda: list(held.values())], calls=calls)


@case(forms="step", serves=True)
def averages_by_module_of_which_data_moves_one():
    return average_by(nn.Linear(4, 2), nn.Linear(4, 2))


@case(forms="step", serves=True)
def tensors_under_a_number_and_its_text():
    held = {1: torch.zeros(4), "1": torch.zeros(4), (1,): torch.zeros(4)}

    def step(x):
        held[1] = held[1] + x.mean(0)
        held["1"] = held["1"] - x.sum(0)
        held[1,] = held[1,] * 0.5 + held[1]
        return held[1] + held["1"] + held[1,]

    return Play(step, [lambda: list(held.values())], calls=singles(8))


@pytest.mark.parametrize("case", case)
def test_moved_containers(case):
    case.check()
