"""What users' optimizers do with numbers that move, beside arithmetic."""

import math
from collections import deque
from decimal import Decimal

import pytest
import torch

import torchgraph as tg
from tests.parity.models import Mlp, batches, cross_entropy, setup
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


class AsksForPythonsOwn(torch.optim.Optimizer):
    """Hands numbers to C code that takes an int or a float alone, after it has begun."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "kept": 2})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                parameter.grad.add_(torch.rand_like(parameter), alpha=0.1)
                parameter.mul_(0.99)
                rate = float(Decimal(group["lr"]))
                state["rates"] = deque(state.get("rates", ()), maxlen=group["kept"])
                parameter.add_(parameter.grad, alpha=-rate / state["step"])


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_numbers_for_code_that_takes_no_other(own):
    def losses(graph):
        torch.manual_seed(0)
        model = Mlp()
        optimizer = AsksForPythonsOwn(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        def update(x, y):
            loss = cross_entropy(model, x, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            return loss.detach()

        step = update
        if graph:
            step = tg.step(update) if own else Whole(model, optimizer, scheduler)
        torch.manual_seed(3)
        found = [step(*batch).item() for batch in batches(Mlp, 8)]
        return found, optimizer.steps, str(optimizer.state_dict())

    assert losses(True) == losses(False)


class Whole(tg.Graph):
    def __init__(self, model, optimizer, scheduler):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, x, y):
        loss = cross_entropy(self.model, x, y)
        loss.backward()
        return loss


COUNT = [0]


class CountsElsewhere(AsksForPythonsOwn):
    """The same, and it has moved a global before, which nobody puts back."""

    def step(self, closure=None):
        COUNT[0] += 1
        super().step(closure)


def test_a_step_that_cannot_be_taken_back_raises_what_it_raises():
    model = Mlp()
    step = Whole(model, CountsElsewhere(model.parameters()), None)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(TypeError, match="Decimal"):
        step(*batches(Mlp, 1)[0])
    assert all(map(torch.equal, model.parameters(), before))
