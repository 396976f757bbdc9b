"""What users' optimizers do with numbers that move, beside arithmetic."""

import math

import pytest
import torch

from tests.parity.models import Mlp, batches, setup
from torchgraph.testing import assert_parity, counters


class AsksForTheType(torch.optim.Optimizer):
    """Numbers whose class decides, among other things that ``type`` does."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        made = type("Made", (), {"rate": 0.5})
        known = type(made) is type and isinstance(made, type) and issubclass(type, type)
        for group in self.param_groups:
            rate = group["lr"] * made.rate if type(group["lr"]) is float and known else 7.0
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-rate)


class GoesByText(torch.optim.Optimizer):
    """A learning rate that goes through a text, as a config does."""

    text = str

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-float(self.text(group["lr"])))


class GoesByItsRepr(GoesByText):
    text = repr


class Power(torch.optim.Optimizer):
    """``math.pow`` of a number and a counter, and of numbers below zero."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "beta": 0.9})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                rate = group["lr"] * (1 - math.pow(group["beta"], state["step"]))
                rate += math.pow(-group["lr"], 2) - math.pow(0.5, state["step"])
                parameter.add_(parameter.grad, alpha=-rate)


@pytest.mark.parametrize("make", [AsksForTheType, GoesByText, GoesByItsRepr, Power])
def test_a_learning_rate_that_a_scheduler_moves(make):
    def made():
        found = setup(Mlp, make)()
        scheduler = torch.optim.lr_scheduler.StepLR(found.optimizer, 4, 0.5)
        return found._replace(scheduler=scheduler)

    assert_parity(made, batches(Mlp, 12))


def test_powers_of_numbers_that_move_need_one_program():
    with counters.expect(captures=1, replays=9):
        assert_parity(setup(Mlp, Power), batches(Mlp, 12))
