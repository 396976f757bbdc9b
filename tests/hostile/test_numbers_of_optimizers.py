"""What optimizers that users write do with the numbers of their param groups."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


class Each(torch.optim.Optimizer):
    """``change(parameter, group, state)`` of each parameter, then a step of SGD."""

    def __init__(self, params: Any, change: Callable[..., Any], **settings: Any) -> None:
        super().__init__(params, {"lr": 0.1, **settings})
        self.change = change

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.change(parameter, group, self.state[parameter])
                parameter.add_(parameter.grad, alpha=-group["lr"])


def changes(change: Callable[..., Any], later: int | None = None, **settings: Any) -> Play:
    """``later``: what the loop sets ``k`` to."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = Each(model.parameters(), change, **settings)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) + 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def put():
        optimizer.param_groups[0]["k"] = later

    before = {6: put} if later is not None else {}
    return Play(step, [model, optimizer], before, singles(12))


SIZED: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "slices": lambda p, k: p[k : k + 1, -k:].mul_(0.9),
    "zeros": lambda p, k: p.view(-1)[:k].add_(torch.zeros(k)),
    "view": lambda p, k: p.view(k, -1).mul_(0.9),
    "power": lambda p, k: p.copy_(p**k),
    "range": lambda p, k: [p.mul_(0.9) for _ in range(k)],
}
"""A number of a group as a size, a bound, a dimension, an exponent."""


def sized(name: str) -> Callable[[], Play]:
    def made() -> Play:
        return changes(lambda p, group, state: SIZED[name](p, group["k"]), later=1, k=2)

    made.__name__ = f"a_number_in_{name.replace(' ', '_')}"
    return made


for one in SIZED:
    case(sized(one))


@case(forms="step", serves=True)
def a_setting_called_foreach():
    def change(p, group, state):
        if group["foreach"] is not False:  # batched where it can be, as many have it
            p.mul_(0.9)

    return changes(change, foreach=None)


@case(forms="step", serves=True)
def the_larger_of_a_number_and_a_norm():
    return changes(lambda p, group, state: p.mul_(1 - max(group["k"], p.norm(2)) * 0.01), k=1e-3)


class Kept:
    def __init__(self, number: Any) -> None:
        self.number = number


@case(forms="step")
def an_object_that_keeps_a_number():
    def change(p, group, state):
        group["count"] += 1
        if "kept" not in state:
            state["kept"] = Kept(group["k"])
            state["listed"] = [Kept(group["k"])]
        damped = 1 - 0.1 / math.pow(0.9, group["count"])
        p.mul_(damped).mul_(state["kept"].number).mul_(state["listed"][0].number)

    return changes(change, k=0.9, count=0)


@case(forms="step", slow=True)
def a_deque_that_keeps_numbers():
    def change(p, group, state):
        group["count"] += 1
        kept = state.setdefault("rates", deque(maxlen=3))
        p.mul_(kept[0] if kept else 1.0).mul_(1 - 0.1 / math.log(1 + group["count"]))
        kept.append(group["k"])

    return changes(change, k=0.9, count=1)


@pytest.mark.parametrize("case", case)
def test_numbers(case):
    case.check()
