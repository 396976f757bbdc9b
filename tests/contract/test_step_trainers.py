"""``tg.step`` on trainers as people have them: batches in attributes, optimizers of their own."""

from __future__ import annotations

import collections
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchgraph as tg
from tests.contract.loops import assert_as_eager, mlp, pairs, supervised
from tests.contract.models import same


class Plain(torch.optim.Optimizer):
    """Gradient descent by hand, as LARS, Muon or AdaBound read their groups."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    scale = max(1, parameter.size(0) / parameter.size(-1)) ** 0.5
                    parameter.add_(parameter.grad, alpha=-group["lr"] * scale)


class Lookahead(torch.optim.Optimizer):
    """Around another optimizer, without a ``super().__init__()``, as published."""

    def __init__(self, base: torch.optim.Optimizer, every: int = 5, alpha: float = 0.5) -> None:
        self.optimizer, self.every, self.alpha = base, every, alpha
        self.param_groups, self.fast_state = base.param_groups, base.state
        self.state = collections.defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    def step(self, closure: Any = None) -> Any:
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for fast in group["params"]:
                    slow = self.state[fast].setdefault("slow", fast.data.clone())
                    slow += (fast.data - slow) * self.alpha
                    fast.data.copy_(slow)
            group["counter"] = (group["counter"] + 1) % self.every
        return loss


def test_an_optimizer_of_ones_own():
    def slower(_, optimizer):
        optimizer.param_groups[0]["lr"] = 0.05

    make = partial(supervised, partial(Plain, lr=0.1), between={5: slower})
    assert_as_eager(make, pairs(10), replayed=8)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_an_optimizer_around_another_one():
    def run(graphed):
        torch.manual_seed(0)
        model = mlp()
        optimizer = Lookahead(torch.optim.Adam(model.parameters()))

        def step(x, y):
            optimizer.optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = tg.step(step) if graphed else step
        torch.manual_seed(1)
        return [step(*batch) for batch in pairs(8)()], dict(model.state_dict())

    assert same(run(True), run(False))


class Translates:
    """``set_input`` and ``optimize_parameters`` apart, as of pix2pix."""

    def __init__(self) -> None:
        self.net = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.weight = [torch.ones(2)]

    def set_input(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def optimize_parameters(self) -> None:
        self.made = self.net(self.a)
        self.optimizer.zero_grad()
        self.loss = functional.mse_loss(self.made, self.b * self.weight[0])
        self.loss.backward()
        self.optimizer.step()


@pytest.mark.parametrize("odd", ["another size", "other strides", "a leaf"])
def test_batches_in_attributes(odd):
    def run(graphed):
        torch.manual_seed(0)
        trainer = Translates()
        step = tg.step(trainer.optimize_parameters) if graphed else trainer.optimize_parameters
        found = []
        for number in range(20):
            size = 2 if odd == "another size" and number == 13 else 4
            a, b = torch.randn(size, 3), torch.randn(size, 2)
            if number == 13 and odd == "other strides":
                a = a.t().contiguous().t()
            elif number == 13 and odd == "a leaf":
                b.requires_grad_()
            if number % 3 == 0:
                trainer.weight[0] = trainer.weight[0] * 0.9
            trainer.set_input(a, b)
            step()
            found.append((trainer.loss.detach(), trainer.made.detach()))
        if graphed:
            assert step.report().calls.programs >= 12
        return found, dict(trainer.net.state_dict())

    assert same(run(True), run(False))


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize("apart", [2, 3, 7])
def test_two_names_of_one_batch_that_part(apart):
    """As of an autoencoder, whose target is its input until noise comes in."""

    def run(graphed):
        torch.manual_seed(0)
        trainer = Translates()
        trainer.net = nn.Linear(3, 3)
        trainer.weight = [torch.ones(3)]
        trainer.optimizer = torch.optim.Adam(trainer.net.parameters())
        step = tg.step(trainer.optimize_parameters) if graphed else trainer.optimize_parameters
        losses = []
        for number in range(11):
            a = torch.randn(4, 3)
            trainer.set_input(a + 0.1 if number >= apart else a, a)
            step()
            losses.append(trainer.loss.detach())
        return losses, dict(trainer.net.state_dict())

    assert same(run(True), run(False))


@pytest.mark.parametrize("who", ["a", "b"])
def test_two_places_of_one_tensor_that_part(who):
    def run(graphed):
        held = SimpleNamespace(a=torch.zeros(3))
        held.b = held.a

        def step(x):
            out = held.a * 2 + held.b * 3 + x
            held.a = held.b = out * 0.1
            return out

        step = tg.step(step) if graphed else step
        results = []
        for number in range(12):
            if number in (6, 9):
                setattr(held, who, torch.full((3,), 7.0))
            results.append(step(torch.ones(3)))
        return results

    assert same(run(True), run(False))


def test_an_argument_that_was_the_last_one_too():
    """A buffer of the caller's, which the step keeps, is another tensor later."""

    def run(graphed):
        held, buffer = {"last": torch.zeros(3)}, torch.ones(3)

        def step(x):
            out = x * 2 - held["last"]
            held["last"] = x
            return out

        step = tg.step(step) if graphed else step
        results = []
        for number in range(14):
            buffer.add_(number < 5)
            given = buffer if number < 5 or number == 10 else torch.full((3,), float(number))
            results.append(step(given))
        return results

    assert same(run(True), run(False))
