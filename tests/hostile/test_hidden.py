"""Hidden states in attributes of modules: the step puts another tensor there in each call."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Calls, Play, pairs, sgd, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


class Cell(nn.Module):
    """Keeps what it has put out last."""

    def __init__(self, hidden: Any = None) -> None:
        super().__init__()
        self.enter, self.turn = nn.Linear(4, 2), nn.Linear(2, 2)
        self.hidden = hidden

    def forward(self, x):
        found = self.enter(x)
        if self.hidden is not None:
            found = found + self.turn(self.hidden)
        found = torch.tanh(found)
        self.hidden = found.detach()
        return found


def cell(
    model: nn.Module,
    before: Mapping[int, Callable[[], Any]] | None = None,
    calls: Calls | None = None,
) -> Play:
    """A loop over it; its state is watched."""
    hidden = [lambda one=one: one.hidden for one in model.modules() if hasattr(one, "hidden")]
    return trains(model, watched=hidden, before=before or {}, calls=calls or pairs(12))


@case(forms="step", serves=True)
def a_hidden_state_that_is_set_back():
    model = Cell()
    return cell(model, {6: lambda: setattr(model, "hidden", None)})


@case(forms="step", serves=True)
def a_hidden_state_that_is_another_one():
    model = Cell(torch.zeros(5, 2))
    return cell(model, {6: lambda: setattr(model, "hidden", torch.ones(2))})


@case(forms="step", serves=True)
def hidden_states_that_are_one_for_a_while():
    model = nn.Sequential(Cell(torch.zeros(5, 2)), nn.Linear(2, 4), Cell(torch.zeros(5, 2)))
    return cell(model, {6: lambda: setattr(model[0], "hidden", model[2].hidden)})


@case(forms="step", serves=True, slow=True)
def a_hidden_state_of_other_rows():
    model = Cell()

    def drop():
        model.hidden = None

    calls = [*pairs(4), *pairs(4, rows=3), *pairs(8)]
    return cell(model, {0: drop, 4: drop, 8: drop}, calls)


@case(forms="step", serves=True)
def a_hidden_state_in_a_tuple():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.LSTM(4, 3), nn.Linear(3, 2)
            self.hidden = None

        def forward(self, x):
            found, hidden = self.rnn(x, self.hidden)
            self.hidden = tuple(one.detach() for one in hidden)
            return self.out(found)

    return cell(Words())


@case(forms="step", serves=True)
def a_hidden_state_that_is_only_read_in_evaluation():
    model = Cell(torch.zeros(5, 2))
    optimizer = sgd(model)

    def body(x, y, trains):
        if not trains:
            return model.turn(model.hidden).detach() + 0
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    calls = [(*pair, number % 3 != 2) for number, pair in enumerate(pairs(24))]
    return Play(body, [model, optimizer, lambda: model.hidden], calls=calls)


@case(forms="step", serves=True)
def a_hidden_state_that_is_an_argument():
    model = Cell(torch.zeros(5, 2))
    optimizer = sgd(model)

    def body(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean() + model.turn(model.hidden).mean()
        loss.backward()
        optimizer.step()
        model.hidden = y
        return loss

    def lies():
        model.hidden = calls[7][1]

    calls = pairs(14)
    return Play(body, [model, optimizer, lambda: model.hidden], {7: lies}, calls)


@case(forms="step", serves=True)
def a_hidden_state_that_is_asked_which_it_is():
    model = Cell(torch.zeros(5, 2))
    optimizer, spare = sgd(model), torch.ones(5, 2)

    def body(x, y):
        optimizer.zero_grad()
        factor = 2.0 if model.hidden is spare else 1.0
        loss = (model(x) - y).square().mean() * factor
        loss.backward()
        optimizer.step()
        return loss

    change = {6: lambda: setattr(model, "hidden", spare)}
    return Play(body, [model, optimizer, lambda: model.hidden], change, pairs(12))


def asks(holder: Any, *, moves: bool) -> Play:
    """What is computed depends on which tensor an attribute holds."""
    model, spare = nn.Linear(4, 2), torch.ones(5, 2)
    optimizer, others = sgd(model), [torch.randn(5, 2) for _ in range(14)]
    holder.hidden = torch.zeros(5, 2)

    def body(x, y):
        optimizer.zero_grad()
        factor = 2.0 if holder.hidden is spare else 1.0
        loss = (model(x) + holder.hidden - y).square().mean() * factor
        loss.backward()
        optimizer.step()
        if moves:
            holder.hidden = model(x).detach()
        return loss

    def puts(number: int) -> Callable[[], Any]:
        tensor = spare if number == 8 else others[number]
        return lambda: setattr(holder, "hidden", tensor)

    change = {number: puts(number) for number in ((8, 11) if moves else range(14))}
    return Play(body, [model, optimizer, lambda: holder.hidden], change, pairs(14))


@case(forms="step")
def which_one_an_object_holds_that_the_loop_moves():
    return asks(types.SimpleNamespace(), moves=False)


case.rows(
    {
        "which_one_an_object_holds_that_the_step_moves": lambda: asks(
            types.SimpleNamespace(), moves=True
        ),
        "which_one_a_module_holds_that_the_step_moves": lambda: asks(nn.Module(), moves=True),
        "which_one_a_module_holds_that_the_loop_moves": lambda: asks(nn.Module(), moves=False),
    },
    forms="step",
    serves=True,
)


@pytest.mark.parametrize("case", case)
def test_hidden(case):
    case.check()
