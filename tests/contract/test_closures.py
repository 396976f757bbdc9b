"""``optimizer.step(closure)`` under ``tg.step``: the user's code calls it, as often as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.cases.plays import Play, net, pairs
from tests.cases.table import Case, Table

table = Table()


class SAM(torch.optim.Optimizer):
    """As the published one: its step takes the closure, and steps an optimizer of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05, "lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        size = torch.norm(torch.stack([parameter.grad.norm() for parameter in own]))
        before = [parameter.clone() for parameter in own]
        for parameter in own:
            parameter.add_(parameter.grad * (0.05 / (size + 1e-12)))
        self.zero_grad()
        closure()
        for parameter, value in zip(own, before, strict=True):
            parameter.copy_(value)
        self.base.step()
        self.zero_grad()


class Twice(torch.optim.SGD):
    """Evaluates for itself, and once more at the point that it has stepped to."""

    def step(self, closure):
        with torch.enable_grad():
            closure()
        super().step()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


class Maybe(torch.optim.SGD):
    """Evaluates as often as the number of its call asks for."""

    calls = 0

    def step(self, closure):
        self.calls += 1
        for _ in range(1 + self.calls % 2):
            with torch.enable_grad():
                closure()
            super().step()


def closed(make: Callable[[Any], Any], *, first: bool = False) -> Play:
    """The closure is given by name, or called by the step itself at first, and then given."""
    model = net()
    optimizer = make(model.parameters())

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = closure() if first else None
        found = optimizer.step(closure) if first else optimizer.step(closure=closure)
        optimizer.zero_grad()
        return found if loss is None else loss

    return Play(step, [model], calls=pairs(8))


table.rows({"SAM": lambda: closed(SAM, first=True)}, served=5)
table.rows({"Twice": lambda: closed(lambda p: Twice(p, lr=0.1, momentum=0.9))}, served=5)
table.rows(
    {"another number of evaluations": lambda: closed(lambda p: Maybe(p, lr=0.1))},
    says=None,
    served=0,
    fallback="eager",
)


@pytest.mark.parametrize("case", table)
def test_a_step_that_takes_its_closure_is_eagers(case: Case) -> None:
    case.check()
