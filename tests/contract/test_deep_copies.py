"""``copy.deepcopy`` of tensors in a step: torch copies their storages as bytes, by no op."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional

import torchgraph as tg
from tests.cases.plays import Play, adam, around_step, net, pairs, trains
from tests.cases.table import Table
from torchgraph.errors import NoProgram

table = Table(served=5)


@table()
def gradients() -> Play:
    model = net()

    def double() -> None:
        parameters = list(model.parameters())
        found = copy.deepcopy([p.grad for p in parameters])
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient * 2

    return around_step(model, adam(model), before=double, number=7)


@table()
def weights_to_go_back_to() -> Play:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x, y):
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        loss = functional.mse_loss(model(copy.deepcopy(x)), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.lerp_(before[name], 0.5)
        return loss

    return Play(step, [model, optimizer], calls=pairs(7))


@table()
def views_of_one_memory() -> Play:
    model = net()

    def step(x, y):
        h = (2 * x).t()
        whole, rows, column = copy.deepcopy([h, h[1:], h[:, 1]])
        rows.add_(1)  # writes the other copies too
        return model(whole.t()).sum() + column.sum(), whole, column

    return Play(step, [model], calls=pairs(7))


class Averaging(torch.optim.Optimizer):
    """Begins its average with a copy of the weights."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["mean"] = copy.deepcopy(parameter.data)
            state["mean"].mul_(0.9).add_(parameter.grad)
            parameter.add_(state["mean"], alpha=-self.param_groups[0]["lr"])


@table(served=4)
def in_an_optimizer() -> Play:
    model = net()
    return trains(model, optimizer=Averaging(model.parameters()), calls=pairs(7))


@pytest.mark.parametrize("case", table)
def test_copies_are_eagers(case):
    case.check()


def test_a_part_of_memory_from_outside_is_refused_with_the_users_line():
    step = tg.step(lambda x: copy.deepcopy(x) * 2)
    with pytest.raises(NoProgram, match=r"(?s)test_deep_copies.*use \.clone\(\)"):
        step(torch.randn(6, 4)[2:])
