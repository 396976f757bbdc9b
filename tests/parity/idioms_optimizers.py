"""Optimizers as users and libraries write them: counters, slots, numbers of groups, branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from torchgraph.errors import EagerWarning

from .idioms import Idiom, entropy, labelled
from .models import ConvNet, Mlp


class Each(Optimizer):
    """``begin`` for each group, then ``move`` for each of its parameters."""

    settings: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__()
        cls.settings = {**cls.settings, **settings}

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        super().__init__(params, {"lr": 0.1, **self.settings, **settings})

    def begin(self, group: dict[str, Any]) -> None:
        """Nothing."""

    def move(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        p.add_(p.grad, alpha=-group["lr"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            self.begin(group)
            for p in group["params"]:
                self.move(p, group)


# --- slots and counters ---------------------------------------------------------------------------


class CountsInPython(Each, lr=0.05, betas=(0.9, 0.99), eps=1e-8):
    """A Python int in the state, math.sqrt of a bias correction: an Adam as many write it."""

    def move(self, p, group):
        if p.grad is None:
            return
        first, second = group["betas"]
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        state["mean"].mul_(first).add_(p.grad, alpha=1 - first)
        state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
        correction = math.sqrt(1 - second ** state["step"]) / (1 - first ** state["step"])
        root = state["square"].sqrt().add_(group["eps"])
        p.addcdiv_(state["mean"], root, value=-group["lr"] * correction)


class Lookahead(Each):
    """Slow weights that the fast ones fall back to every k steps."""

    def move(self, p, group):
        state = self.state[p]
        if "slow" not in state:
            state["slow"], state["count"] = p.detach().clone(), 0
        p.add_(p.grad, alpha=-group["lr"])
        state["count"] += 1
        if state["count"] % 3 == 0:
            state["slow"].lerp_(p, 0.5)
            p.copy_(state["slow"])


class Replaces(Each):
    """Puts a new tensor into its state instead of writing the old one."""

    def move(self, p, group):
        old = self.state[p].get("velocity", torch.zeros_like(p))
        self.state[p]["velocity"] = 0.9 * old + p.grad
        p.sub_(group["lr"] * self.state[p]["velocity"])


class Rotating(Each):
    """Keeps the last two gradients; each step the slots change places."""

    def move(self, p, group):
        state = self.state[p]
        if not state:
            state["old"], state["new"] = torch.zeros_like(p), torch.zeros_like(p)
        state["old"], state["new"] = state["new"], state["old"]
        state["new"].copy_(p.grad)
        p.add_(2 * state["new"] - state["old"], alpha=-group["lr"])


class Late(Each):
    """A slot is None at first; an average of the weights appears at the third step."""

    def move(self, p, group):
        state = self.state[p]
        if not state:
            state["step"], state["velocity"] = 0, None
        state["step"] += 1
        if state["velocity"] is None:
            state["velocity"] = torch.clone(p.grad).detach()
        else:
            state["velocity"].mul_(0.9).add_(p.grad)
        p.add_(state["velocity"], alpha=-group["lr"])
        if state["step"] == 3:
            state["average"] = p.clone()
        elif state["step"] > 3:
            state["average"].lerp_(p, 1 / (state["step"] - 2))


class Averages(Each):
    """The first average is a copy of the parameter, which the same step then updates."""

    def move(self, p, group):
        state = self.state[p]
        if not state:
            state["average"] = torch.empty_like(p).copy_(p)
        super().move(p, group)
        state["average"].lerp_(p, 0.1)


class ListOfSlots(Each):
    """The first step makes a list of tensors, which later ones write."""

    def move(self, p, group):
        state = self.state[p]
        if not state:
            state["history"] = [torch.zeros_like(p), torch.zeros_like(p)]
        state["history"][0].copy_(state["history"][1])
        state["history"][1].copy_(p.grad)
        p.add_(state["history"][0], alpha=-0.1)


class Graft:
    """A slot of its own, as second-order methods have."""

    def __init__(self, p: torch.Tensor) -> None:
        self.momentum = torch.zeros_like(p)

    def __repr__(self) -> str:
        return f"Graft({self.momentum})"


class Grafts(Each):
    """Slots that are objects with tensors."""

    def move(self, p, group):
        state = self.state[p]
        if not state:
            state["graft"] = Graft(p)
        p.add_(state["graft"].momentum.mul_(0.9).add_(p.grad), alpha=-0.1)


class CountsInState(Each):
    """A tensor in the state itself, as MADGRAD has."""

    def __init__(self, params):
        super().__init__(params)
        self.state["k"] = torch.tensor(0)

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad * 0.1 / (1 + self.state["k"]))
        self.state["k"] += 1


class SharedCounter(Each):
    """State under a string key, as some optimizers keep what belongs to no parameter."""

    def __init__(self, params):
        super().__init__(params)
        self.state["all"] = {"step": 0}

    def begin(self, group):
        self.state["all"]["step"] += 1

    def move(self, p, group):
        p.add_(p.grad, alpha=-group["lr"] / self.state["all"]["step"])


class LateSharedCounter(SharedCounter):
    """State under a string key that the first step makes: a number and a tensor."""

    def __init__(self, params):
        Each.__init__(self, params)

    def begin(self, group):
        shared = self.state["all"]
        if not shared:
            shared["step"], shared["norm"] = 0, torch.zeros(())
        super().begin(group)

    def move(self, p, group):
        self.state["all"]["norm"].add_(p.grad.norm())
        super().move(p, group)


# --- numbers of groups ----------------------------------------------------------------------------


class StateInGroups(Each, decay=0.9, total=0.0):
    """What moves from step to step lies in the param group, not in the state."""

    def begin(self, group):
        group["total"] = group["decay"] * group["total"] + 1.0

    def move(self, p, group):
        p.add_(p.grad, alpha=-group["lr"] / group["total"])


class Lamb(Each, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.01):
    """The step count is a key that ``step`` adds to the group; a trust ratio for each parameter."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        squares = [p.grad.pow(2).sum() for g in self.param_groups for p in g["params"]]
        norm = torch.stack(squares).sum().sqrt()
        self.clip = torch.where(norm > 1.0, norm, torch.ones_like(norm))
        super().step()
        del self.clip

    def begin(self, group):
        if "step" in group:
            group["step"] += 1
        else:
            group["step"] = 1

    def move(self, p, group):
        first, second = group["betas"]
        corrections = 1 - first ** group["step"], 1 - second ** group["step"]
        grad = p.grad.div_(self.clip)
        state = self.state[p]
        if len(state) == 0:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(first).add_(grad, alpha=1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second)
        denominator = (square.sqrt() / math.sqrt(corrections[1])).add_(1e-6)
        update = (mean / corrections[0]).div_(denominator)
        if group["weight_decay"] != 0:
            update.add_(p, alpha=group["weight_decay"])
        weight, length = p.norm(2.0), update.norm(2.0)
        one = torch.ones_like(weight)
        trust = torch.where(length > 0, weight / length, one)
        update.mul_(torch.where(weight > 0, trust, one).clamp(max=1.0))
        p.add_(update, alpha=-group["lr"])


class Adan(Each, lr=1e-2, betas=(0.98, 0.92, 0.99), weight_decay=0.02):
    """Keeps the negated gradient of the step before, made when the group's step is 1."""

    def begin(self, group):
        group["step"] = group.get("step", 0) + 1

    def move(self, p, group):
        b1, b2, b3 = group["betas"]
        c1, c2 = 1 - b1 ** group["step"], 1 - b2 ** group["step"]
        root = math.sqrt(1 - b3 ** group["step"])
        state = self.state[p]
        if not state:
            for slot in ("exp_avg", "exp_avg_diff", "exp_avg_sq"):
                state[slot] = torch.zeros_like(p)
        if "neg_pre_grad" not in state or group["step"] == 1:
            state["neg_pre_grad"] = p.grad.clone().mul_(-1.0)
        past = state["neg_pre_grad"].add_(p.grad)
        state["exp_avg"].mul_(b1).add_(p.grad, alpha=1 - b1)
        state["exp_avg_diff"].mul_(b2).add_(past, alpha=1 - b2)
        past.mul_(b2).add_(p.grad)
        state["exp_avg_sq"].mul_(b3).addcmul_(past, past, value=1 - b3)
        denominator = (state["exp_avg_sq"].sqrt() / root).add_(1e-8)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / c1)
        p.addcdiv_(state["exp_avg_diff"], denominator, value=-group["lr"] * b2 / c2)
        past.zero_().add_(p.grad, alpha=-1.0)


class RectifiedAdam(Each):
    """Numbers of a step are kept in a table of the group, one row for each of ten steps."""

    def __init__(self, params):
        table = [[None, None, None] for _ in range(10)]
        super().__init__(params, lr=1e-2, betas=(0.9, 0.8), buffer=table)

    def _row(self, group, step):
        row = group["buffer"][step % 10]
        if row[0] == step:
            return row[1], row[2]
        first, second = group["betas"]
        longest = 2 / (1 - second) - 1
        length = longest - 2 * step * second**step / (1 - second**step)
        rate = group["lr"] / (1 - first**step)
        if length >= 4:
            above = (length - 4) * (length - 2) * longest
            rate *= math.sqrt((1 - second**step) * above / ((longest - 4) * (longest - 2) * length))
        row[:] = [step, length, rate]
        return length, rate

    def move(self, p, group):
        first, second = group["betas"]
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
        state["mean"].mul_(first).add_(p.grad, alpha=1 - first)
        length, rate = self._row(group, int(state["step"]))
        if length >= 4:
            p.addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-rate)
        else:
            p.add_(state["mean"], alpha=-rate)


class SharedDistance(Each):
    """D-adaptation: one scale for all parameters, from sums over all of them, in a group's tensor.

    A scale that is estimated from every parameter links them: no parameter's update stands alone.
    """

    def __init__(self, params):
        super().__init__(params, lr=1.0, d=torch.tensor(1e-3), k=0)

    def begin(self, group):
        inner, length = torch.zeros(()), torch.zeros(())
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state["start"], state["sum"] = p.detach().clone(), torch.zeros_like(p)
            inner += torch.dot(p.grad.flatten(), (state["start"] - p).flatten())
            state["sum"].add_(p.grad * group["d"])
            length += state["sum"].abs().sum()
        group["d"].copy_(torch.maximum(group["d"], (inner / length).clamp(max=1.0)))
        group["k"] = group["k"] + 1

    def move(self, p, group):
        p.sub_(group["lr"] * group["d"] * p.grad)


class Printing(Each, lr=1e-2, weight_decay=0.1, clip=None):
    """Truth values, comparisons and formats of hyper-parameters, as readable code has them."""

    def begin(self, group):
        if not group["lr"] or not 0.0 <= group["lr"] < 1.0:
            raise ValueError(f"Invalid learning rate: {group['lr']:.3f}")
        self.message = f"lr {group['lr']:g}, decay {group['weight_decay']}"

    def move(self, p, group):
        grad = p.grad
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p
        if group["clip"] is not None:
            grad = grad.clamp(-group["clip"], group["clip"])
        p.add_(grad, alpha=-float(group["lr"]))


class AsksForTheType(Each):
    """Numbers whose class decides, among other things that ``type`` does."""

    def move(self, p, group):
        made = type("Made", (), {"rate": 0.5})
        known = type(made) is type and isinstance(made, type) and issubclass(type, type)
        rate = group["lr"] * made.rate if type(group["lr"]) is float and known else 7.0
        p.add_(p.grad, alpha=-rate)


class GoesByText(Each):
    """A learning rate that goes through a text, as a config does."""

    text = str

    def move(self, p, group):
        p.add_(p.grad, alpha=-float(self.text(group["lr"])))


class GoesByItsRepr(GoesByText):
    text = repr


class Power(Each, beta=0.9):
    """``math.pow`` of a number and a counter, and of numbers below zero."""

    def move(self, p, group):
        state = self.state[p]
        state["step"] = state.get("step", 0) + 1
        rate = group["lr"] * (1 - math.pow(group["beta"], state["step"]))
        rate += math.pow(-group["lr"], 2) - math.pow(0.5, state["step"])
        p.add_(p.grad, alpha=-rate)


# --- draws, branches and numbers of tensors -------------------------------------------------------


class Noisy(Each, lr=0.01):
    """Langevin dynamics: draws random numbers in the step."""

    def move(self, p, group):
        noise = torch.randn_like(p)
        super().move(p, group)
        p.add_(noise, alpha=math.sqrt(2 * group["lr"]) * 0.01)


class Warmup(Each):
    """A branch on a counter in a tensor, and ``min`` of a number that moves."""

    def move(self, p, group):
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
        state["step"] += 1
        rate = group["lr"] * min(1.0, state["step"].item() / 4)
        if state["step"].item() > 3:
            p.mul_(0.99)
        p.add_(p.grad, alpha=-rate)


class Branches(Each):
    """A gradient's norm decides, back and forth: each side has its program, none is baked in."""

    def move(self, p, group):
        if bool(p.grad.norm() > 0.01):
            super().move(p, group)


class Normed(Each):
    """``.item()`` without a branch: the program carries the number, no value is baked in."""

    def move(self, p, group):
        p.add_(p.grad, alpha=-0.1 / (1.0 + p.grad.norm().item()))


class CosineByHand(torch.optim.AdamW):
    """The learning rate is a NumPy number that ``step`` puts into its group."""

    rates = 0.01 * (1 + np.cos(np.linspace(0, np.pi, 8)))

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, lr=float(self.rates[0]))
        self.param_groups[0]["seen"] = 0

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        group["lr"] = self.rates[group["seen"] % 8]
        group["seen"] += 1
        return super().step(closure)


def over(kind: Callable[..., Optimizer], **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda model: kind(model.parameters(), **settings)


def grouped(model: nn.Module) -> Optimizer:
    """No decay for what has one dimension, as timm's and transformers' trainers group."""
    wide = [p for p in model.parameters() if p.ndim > 1]
    flat = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    return Lamb(groups)


def hooked(model: nn.Module) -> Optimizer:
    """Hooks before and after its step, which are in the program."""

    def halve(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad.mul_(0.5)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(halve)
    optimizer.register_step_post_hook(lambda optimizer, *_: model.second.bias.data.mul_(0.5))
    return optimizer


def row(name: str, optimizer: Callable[[nn.Module], Optimizer], steps=10, **more: Any) -> Idiom:
    batches = labelled((5, 6), 3, steps=steps)
    return Idiom(f"optimizer_{name}", Mlp, batches, entropy, optimizer, **more)


def halved(optimizer: Optimizer) -> Any:
    return lr_scheduler.StepLR(optimizer, 4, 0.5)


def small_and_large() -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = labelled((5, 6), 3, steps=10)()
    return [(x * (1 if step % 2 else 1e-4), y) for step, (x, y) in enumerate(pairs)]


OF_USERS = [
    row("counts_in_python", over(CountsInPython), served=(1, 7)),  # the first step makes its state
    row("late_shared_counter", over(LateSharedCounter)),
    row("lookahead", over(Lookahead)),
    row("noisy", over(Noisy), served=(1, 8)),
    row("replaces_its_slots", over(Replaces)),
    row("shared_counter", over(SharedCounter), served=(1, 8)),
    row("state_in_groups", over(StateInGroups), served=(1, 8)),
    row("warmup", over(Warmup), served=(2, 6)),  # one each side of the branch
]
IDIOMS = [
    *OF_USERS,
    row("lamb", over(Lamb), 6),
    row("lamb_with_groups", grouped, 6),
    row("adan", over(Adan), 6),
    # Its table of ten steps grows with each of them: other states in each.
    row("rectified_adam", over(RectifiedAdam), 6, stays_eager=EagerWarning, seldom=True),
    row("slots_that_rotate", over(Rotating), 6),
    row("slots_that_appear", over(Late), 6),
    row("slots_that_copy_parameters", over(Averages), 6),
    row("lists_of_slots", over(ListOfSlots), 6),
    row("shared_distance", over(SharedDistance), 6),
    row("formats", over(Printing), 6),
    row("numpy_rate", over(torch.optim.AdamW, lr=np.float64(1e-2)), 6),
    row("numpy_rate_of_a_table", over(CosineByHand), 6, stays_eager=EagerWarning),
    row("type_of_a_rate", over(AsksForTheType), 12, schedule=halved),
    row("text_of_a_rate", over(GoesByText), 12, schedule=halved),
    row("repr_of_a_rate", over(GoesByItsRepr), 12, schedule=halved),
    row("powers", over(Power), 12, served=(1, 9)),
    row("powers_of_a_rate_that_moves", over(Power), 12, schedule=halved),
    row("norm_as_a_number", over(Normed), 6),
    row("hooks_of_an_optimizer", hooked, 6),
    replace(
        row("branch_on_a_norm", over(Branches), served=(2, 6)),
        model=lambda: Mlp().eval(),
        batches=small_and_large,
    ),
]


def of_images(idiom: Idiom) -> Idiom:
    """The optimizer of an idiom over convolutions and norms."""
    return replace(idiom, model=ConvNet, batches=labelled((5, 2, 6, 6), 3, steps=10))
