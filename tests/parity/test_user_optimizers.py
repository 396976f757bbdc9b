"""Optimizers that users write: what ``step`` does with tensors and numbers, as eager does."""

import copy
import math

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.parity.models import ConvNet, Mlp, batches, cross_entropy, setup
from tests.support import thinned
from torchgraph.errors import UnsupportedOptimizer
from torchgraph.testing import Setup, assert_parity, counters


class CountsInPython(torch.optim.Optimizer):
    """A Python int in the state, math.sqrt of a bias correction: an Adam as many write it."""

    def __init__(self, params, lr=0.05, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                state["step"] += 1
                state["mean"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(
                    parameter.grad, parameter.grad, value=1 - second
                )
                correction = math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
                root = state["square"].sqrt().add_(group["eps"])
                parameter.addcdiv_(state["mean"], root, value=-group["lr"] * correction)


class Lookahead(torch.optim.Optimizer):
    """Slow weights that the fast ones fall back to every k steps."""

    def __init__(self, params, lr=0.1, every=3):
        super().__init__(params, {"lr": lr, "every": every, "alpha": 0.5})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if "slow" not in state:
                    state["slow"] = parameter.detach().clone()
                    state["count"] = 0
                parameter.add_(parameter.grad, alpha=-group["lr"])
                state["count"] += 1
                if state["count"] % group["every"] == 0:
                    state["slow"].lerp_(parameter, group["alpha"])
                    parameter.copy_(state["slow"])


class StateInGroups(torch.optim.Optimizer):
    """What moves from step to step lies in the param group, not in the state."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "decay": 0.9, "total": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["total"] = group["decay"] * group["total"] + 1.0
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] / group["total"])


class Replaces(torch.optim.Optimizer):
    """Puts a new tensor into its state instead of writing the old one."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                old = state.get("velocity", torch.zeros_like(parameter))
                state["velocity"] = 0.9 * old + parameter.grad
                parameter.sub_(group["lr"] * state["velocity"])


class Sign(torch.optim.Optimizer):
    """Lion: a sign, two interpolations, decoupled decay."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["mean"].lerp(parameter.grad, 1 - first).sign_()
                parameter.add_(update, alpha=-group["lr"])
                state["mean"].lerp_(parameter.grad, 1 - second)


class Noisy(torch.optim.Optimizer):
    """Langevin dynamics: draws random numbers in the step."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                noise = torch.randn_like(parameter)
                parameter.add_(parameter.grad, alpha=-group["lr"])
                parameter.add_(noise, alpha=math.sqrt(2 * group["lr"]) * 0.01)


class Warmup(torch.optim.Optimizer):
    """A branch on a counter in a tensor, and ``min`` of a number that moves."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                state["step"] += 1
                scale = min(1.0, state["step"].item() / 4)
                rate = group["lr"] * scale
                if state["step"].item() > 3:
                    parameter.mul_(0.99)
                parameter.add_(parameter.grad, alpha=-rate)


class SharedCounter(torch.optim.Optimizer):
    """State under a string key, as some optimizers keep what belongs to no parameter."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.state["all"] = {"step": 0}

    @torch.no_grad()
    def step(self, closure=None):
        self.state["all"]["step"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] / self.state["all"]["step"])


class LateSharedCounter(torch.optim.Optimizer):
    """The same, made by the first step: a number and a tensor."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        shared = self.state["all"]
        if not shared:
            shared["step"] = 0
            shared["norm"] = torch.zeros(())
        shared["step"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                shared["norm"].add_(parameter.grad.norm())
                parameter.add_(parameter.grad, alpha=-group["lr"] / shared["step"])


SERVED = {
    CountsInPython: (1, 7),  # its state is made by the first step
    LateSharedCounter: None,
    Lookahead: None,
    Noisy: (1, 8),
    Replaces: None,
    SharedCounter: (1, 8),
    Sign: (1, 8),
    StateInGroups: (1, 8),
    Warmup: (2, 6),  # one each side of the branch
}
"""Programs that ten steps need, and the steps that they serve; None: not looked at."""


@pytest.mark.parametrize("model", thinned([Mlp, ConvNet], keep=[Mlp]))
@pytest.mark.parametrize("make", SERVED)
def test_ten_steps_are_bitwise_eager(make, model):
    captures, replays = counters.captures, counters.replays
    assert_parity(setup(model, make), batches(model, 10))
    found = counters.captures - captures, counters.replays - replays
    assert SERVED[make] in (None, found)


def of_its_own(form, make):
    """A step that takes its own update, and its optimizer."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = make(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = cross_entropy(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    made = form(step)
    torch.manual_seed(3)
    return made, optimizer


@pytest.mark.parametrize(
    ("make", "replays"), [(CountsInPython, 7), (LateSharedCounter, 7), (StateInGroups, 8)]
)
def test_numbers_that_move_in_a_step_that_takes_its_own_update(make, replays):
    losses = []
    for form in (lambda step: step, tg.step):
        made, _ = of_its_own(form, make)
        with counters.expect(replays=replays if form is tg.step else 0):
            losses.append([made(*batch).item() for batch in batches(Mlp, 10)])
    assert losses[0] == losses[1]


class Wraps(torch.optim.Optimizer):
    """The groups and the state are those of another optimizer, whose step is a part of its own."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.state = inner, inner.state

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * 0.01)
        self.inner.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.sign(), alpha=-group["lr"] * 0.1)
            group["lr"] *= 0.99


@pytest.mark.parametrize(("held", "replays"), [(False, 6), (True, 7)])
def test_an_optimizer_that_shares_its_groups_with_one_it_wraps(held, replays):
    """``held``: the step names the inner one, too."""
    found = []
    for form in (lambda step: step, tg.step):
        torch.manual_seed(0)
        model = Mlp()
        optimizer = Wraps(torch.optim.AdamW(model.parameters(), lr=0.1))
        group = optimizer.param_groups[0]

        def step(x, y, model=model, optimizer=optimizer, inner=optimizer.inner if held else None):
            (inner or optimizer).zero_grad()
            loss = cross_entropy(model, x, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        made, seen = form(step), []
        with counters.expect(replays=replays if made is not step else 0):
            for number, batch in enumerate(batches(Mlp, 10)):
                if number == 6:
                    group["lr"] *= 0.5
                    group["weight_decay"] = 0.1
                seen.append((made(*batch).item(), group["lr"], group["weight_decay"]))
        found.append(seen)
    assert found[0] == found[1]


class Graft:
    """A slot of its own, as second-order methods have."""

    def __init__(self, parameter):
        self.momentum = torch.zeros_like(parameter)


class Grafts(torch.optim.Optimizer):
    """Slots that are objects with tensors."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["graft"] = Graft(parameter)
            momentum = state["graft"].momentum.mul_(0.9).add_(parameter.grad)
            parameter.add_(momentum, alpha=-0.1)


class CountsInState(torch.optim.Optimizer):
    """A tensor in the state itself, as MADGRAD has."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.state["k"] = torch.tensor(0)

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad * 0.1 / (1 + self.state["k"]))
        self.state["k"] += 1


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
@pytest.mark.parametrize(("kind", "served"), [(Grafts, True), (CountsInState, False)])
def test_what_an_optimizer_loads_in_the_middle(kind, served):
    found = []
    for form in (lambda step: step, tg.step):
        made, optimizer = of_its_own(form, kind)
        if form is tg.step:
            made.config.set_look_again("off")
            made.config.set_fallback("eager")
        found.append([])
        for number, batch in enumerate(batches(Mlp, 10)):
            if number == 5:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            found[-1].append(made(*batch).item())
    assert found[0] == found[1]
    assert (made.report().calls.programs > 0) == served


def test_two_optimizers_each_with_its_parameters():
    def make():
        model = Mlp()
        adam = torch.optim.AdamW(model.first.parameters(), lr=0.05)
        sgd = torch.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9)
        return model, adam, sgd

    torch.manual_seed(0)
    model, *optimizers = make()
    torch.manual_seed(0)
    graphed, *others = make()
    torch.manual_seed(3)
    expected = []
    for batch in batches(Mlp, 6):
        loss = cross_entropy(model, *batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        expected.append(loss.item())

    class Step(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = graphed
            for optimizer in others:
                self.add_optimizer(optimizer)

        def build(self, x, y):
            loss = cross_entropy(self.model, x, y)
            loss.backward()
            return loss

    step = Step()
    torch.manual_seed(3)

    assert [step(*batch).item() for batch in batches(Mlp, 6)] == expected
    for left, right in zip(model.parameters(), graphed.parameters(), strict=True):
        assert torch.equal(left, right)
    for left, right in zip(optimizers, others, strict=True):
        assert str(left.state_dict()) == str(right.state_dict())


def test_hooks_of_an_optimizer_are_in_the_program():
    calls = []

    def halve(optimizer, args, kwargs):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    def make():
        made = setup(Mlp, lambda p: torch.optim.SGD(p, lr=0.1))()
        made.optimizer.register_step_pre_hook(halve)
        made.optimizer.register_step_post_hook(lambda *_: calls.append(1))
        return made

    assert_parity(make, batches(Mlp, 6))

    assert calls


class NeedsClosure(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure):
        closure()


class CreatesList(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["history"] = [torch.zeros_like(parameter), torch.zeros_like(parameter)]
            state["history"][0].copy_(state["history"][1])
            state["history"][1].copy_(parameter.grad)
            parameter.add_(state["history"][0], alpha=-0.1)


def test_an_optimizer_that_needs_a_closure_refuses():
    model = Mlp()
    step = tg.train_step(model, nn.CrossEntropyLoss(), NeedsClosure(model.parameters()))
    with pytest.raises(UnsupportedOptimizer, match="closure"):
        step(*batches(Mlp, 1)[0])


def test_nested_state_works_when_the_first_step_creates_it():
    before = counters.replays
    assert_parity(setup(Mlp, CreatesList), batches(Mlp, 6))

    assert counters.replays > before


def test_data_dependent_python_in_a_step_is_right():
    """A gradient's norm decides, back and forth: each side has its program, none is baked in."""
    taken = []

    class Branches(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            parameter = self.param_groups[0]["params"][0]
            taken.append(bool(parameter.grad.norm() > 0.01))
            if taken[-1]:
                parameter.add_(parameter.grad, alpha=-0.1)

    def make():
        made = setup(Mlp, Branches)()
        return made._replace(model=made.model.eval())

    before = counters.replays
    scaled = [(x * (1 if n % 2 else 1e-4), y) for n, (x, y) in enumerate(batches(Mlp, 10))]
    assert_parity(make, scaled)

    assert set(taken) == {True, False}
    assert counters.replays > before


def test_a_number_that_the_gradient_gives_may_scale_the_step():
    """``.item()`` without a branch: the program carries the number, no value is baked in."""

    class Normed(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                norm = parameter.grad.norm().item()
                parameter.add_(parameter.grad, alpha=-0.1 / (1.0 + norm))

    assert_parity(setup(Mlp, Normed), batches(Mlp, 6))


def test_a_setup_without_an_optimizer_only_evaluates():
    def make():
        return Setup(Mlp(), None, cross_entropy)

    assert_parity(make, batches(Mlp, 6))
