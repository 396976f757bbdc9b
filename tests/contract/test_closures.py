"""``optimizer.step(closure)`` under ``tg.step``: the user's code calls it, as often as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.contract.loops import falls_back
from torchgraph.errors import EagerWarning, UnsupportedOptimizer

Wrap = Callable[[Any], Any]


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
    """Evaluates for itself, and once more at the point that it has tg.step to."""

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


def trained(wrap: Wrap, make: Callable[[Any], Any], *, first: bool, named: bool) -> list[Any]:
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    optimizer = make(net.parameters())

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            return loss

        loss = closure() if first else None
        found = optimizer.step(closure=closure) if named else optimizer.step(closure)
        optimizer.zero_grad()
        return found if loss is None else loss

    step = wrap(step)
    losses = [step(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(8)]
    left = [None if loss is None else loss.item() for loss in losses]
    return [step, [*left, *(parameter.tolist() for parameter in net.parameters())]]


def sgd(parameters: Any) -> Any:
    return Twice(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(("make", "first", "named"), [(SAM, True, False), (sgd, False, True)])
def test_a_step_that_takes_its_closure_becomes_a_program(
    make: Callable[[Any], Any], first: bool, named: bool
) -> None:
    step, ours = trained(tg.step, make, first=first, named=named)
    _, eager = trained(lambda function: function, make, first=first, named=named)
    assert ours == eager
    calls = step.report().calls
    assert (calls.eager, calls.programs >= 4) == ((), True)


def test_evaluations_of_another_number_are_eagers() -> None:
    def make(parameters: Any) -> Any:
        return Maybe(parameters, lr=0.1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, ours = trained(falls_back, make, first=False, named=False)
    assert ours == trained(lambda function: function, make, first=False, named=False)[1]


def test_lbfgs_beside_another_optimizer_runs_in_eager_where_that_is_wanted() -> None:
    def run(wrap: Wrap) -> list[Any]:
        torch.manual_seed(0)
        nets = nn.Linear(3, 1), nn.Linear(3, 1)
        searches, steps = (
            torch.optim.LBFGS(nets[0].parameters()),
            torch.optim.SGD(nets[1].parameters(), lr=0.1),
        )

        def step(x):
            def closure():
                searches.zero_grad()
                loss = nets[0](x).square().mean()
                loss.backward()
                return loss

            searches.step(closure)
            steps.zero_grad()
            nets[1](x).square().mean().backward()
            steps.step()

        step = wrap(step)
        for _ in range(4):
            step(torch.randn(4, 3))
        return [parameter.tolist() for net in nets for parameter in net.parameters()]

    with pytest.raises(UnsupportedOptimizer, match="line search"):
        run(tg.step)
    with pytest.warns(EagerWarning, match="line search"):
        ours = run(falls_back)
    assert ours == run(lambda function: function)
