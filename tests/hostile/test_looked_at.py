"""Tensors that a step looks at as objects, swaps or puts into containers, and does not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, moves, setting
from tests.cases.table import Table

case = Table("step graph", says=None)
ones, zeros = torch.ones, torch.zeros


def looks(look: Any, first: Any, *changes: Any) -> Play:
    """``x * look(tensor)``; the changes are values, or functions of the tensor there."""
    held = SimpleNamespace(t=first)

    def change(one):
        held.t = one if one is None or isinstance(one, (torch.Tensor, int)) else one(held.t)

    def changed(one):
        return lambda: change(one)

    before = {5 + 3 * number: changed(one) for number, one in enumerate(changes)}
    calls = [(torch.randn(5, 4),) for _ in range(8 + 3 * len(changes))]
    return Play(lambda x: x * look(held.t), [held], before, calls)


# --- what is asked of a tensor that the loop replaces ---------------------------------------------


case.rows(
    {
        "whether_there_is_one": lambda: looks(
            lambda t: 1 if t is None else 2, ones(3), None, zeros(3), 4
        ),
        "whether_it_is_a_parameter": lambda: looks(
            lambda t: 1 + isinstance(t, nn.Parameter), ones(3), nn.Parameter(ones(3)), ones(3)
        ),
        "its_shape": lambda: looks(lambda t: t.shape[0], ones(3), ones(4), ones(3)),
        "whether_it_needs_a_gradient": lambda: looks(
            lambda t: 1 + t.requires_grad, ones(3), lambda t: t.requires_grad_(), ones(3)
        ),
        "whether_it_is_contiguous": lambda: looks(
            lambda t: 1 + t.is_contiguous(), zeros(3), zeros(6)[::2], zeros(3)
        ),
        "where_it_begins": lambda: looks(
            lambda t: t.storage_offset(), zeros(3), zeros(6)[2:5], zeros(3)
        ),
        "whether_it_is_a_leaf": lambda: looks(
            lambda t: 1 + t.is_leaf, zeros(3), zeros(3, requires_grad=True) * 2
        ),
    },
    forms="step",
    serves=True,
)


@case(forms="step", serves=True)
def whether_it_has_a_gradient():
    given = zeros(3, requires_grad=True)
    given.grad = zeros(3)
    return looks(lambda t: 1 if t.grad is None else 2, zeros(3), nn.Parameter(zeros(3)), given)


@case(forms="step", serves=True)
def the_shape_of_what_its_data_is_set_to():
    def change(t):
        t.data = torch.ones(7)
        return t

    return looks(lambda t: t.shape[0], torch.ones(3), change, torch.ones(3))


@case(forms="step", serves=True)
def an_attribute_of_its_own():
    def tagged(k):
        made = torch.ones(3)
        made.k = k
        return made

    return looks(lambda t: t.k, tagged(1), tagged(2), tagged(3))


# --- what is asked of a tensor that the step keeps ------------------------------------------------


def keeps(same: Any) -> Play:
    """The last batch is added where it is like this one; two sizes come in runs."""
    held = SimpleNamespace(last=torch.zeros(1))

    def step(x):
        found = x + held.last if same(held.last, x) else x
        held.last = x * 1
        return found.sum()

    pattern = [0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    return Play(step, [held], calls=[(torch.randn(2 + more),) for more in pattern])


@case(forms="step", serves=True)
def the_shape_of_the_last_batch():
    return keeps(lambda last, x: last.shape == x.shape)


# --- swaps ----------------------------------------------------------------------------------------


@case(forms="step")
def two_tensors_of_a_list_that_change_places():
    held = [torch.zeros(1), torch.ones(1)]

    def step(x):
        held[0], held[1] = held[1], held[0]
        return x * 2

    return moves(step, held, before7=held.reverse)


@case(forms="step", slow=True)
def two_attributes_and_two_entries_that_change_places():
    held = SimpleNamespace(p=torch.zeros(1), q=torch.ones(1))
    table = {"a": torch.zeros(1), "b": torch.ones(1)}

    def step(x):
        held.p, held.q = held.q, held.p
        table["a"], table["b"] = table["b"], table["a"]
        return x * 2

    return moves(step, held, table, before7=setting(held, "p", torch.ones(1) * 5))


@case(forms="step")
def two_names_that_lead_to_one_tensor_at_times():
    held, weight = SimpleNamespace(a=torch.ones(1)), torch.ones(1)

    def step(x):
        weight.add_(1)
        return x + held.a * weight

    def put(n):
        return lambda: setattr(held, "a", weight if n in (6, 9) else torch.tensor([float(n)]))

    between = {f"before{n}": put(n) for n in range(14)}
    return moves(step, held, weight, **between)


# --- containers of tensors that the loop replaces -------------------------------------------------


@case(forms="step", serves=True)
def containers_that_the_loop_replaces():
    held = SimpleNamespace(t={"q": torch.zeros(1)}, s=[torch.zeros(1)])

    def step(x):
        held.t["q"] = held.t["q"] + x.sum()
        held.s[0] = x * 3
        return x + 1

    def put():
        held.t, held.s = {"q": torch.ones(1)}, list(held.s)

    return moves(step, held, number=16, before7=put, before10=put)


@case(forms="step", fault="a ConfirmWarning: the program comes to other results than eager")
def containers_of_three_kinds_that_the_loop_replaces():
    held = SimpleNamespace(t={"q": torch.zeros(1)}, s=[torch.zeros(1)], n={"a": {"b": None}})

    def step(x):
        held.t["q"] = held.t["q"] + x.sum()
        held.s[0] = x * 3
        held.n["a"]["b"] = x * 4
        return x + 1

    def put():
        held.t, held.s, held.n["a"] = {"q": torch.ones(1)}, list(held.s), {"b": torch.zeros(1)}

    return moves(step, held, number=16, before7=put, before10=put)


@case(forms="step")
def a_list_that_the_loop_replaces_after_two_calls():
    held = SimpleNamespace(k=[torch.zeros(1), torch.ones(1)], q=torch.zeros(1))

    def step(x):
        found = x * 1
        held.k[0] = held.k[0] + x
        if x > 0:
            found = found + held.q
        return found

    def put():
        held.k = [torch.ones(1), torch.zeros(1)]

    calls = [(torch.full((1,), float(n - 5)),) for n in range(16)]
    return Play(step, [held], {3: put}, calls)


@pytest.mark.parametrize("case", case)
def test_looked_at(case):
    case.check()
