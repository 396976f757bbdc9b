"""Idioms of optimizers: step counts in param groups, buffers of groups, slots that move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from torchgraph.errors import EagerWarning

from .idioms import Idiom, entropy, labelled
from .models import Mlp


class Lamb(Optimizer):
    """The step count is a key that ``step`` adds to the group; a trust ratio for each parameter."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.01})

    def _clip(self) -> torch.Tensor:
        squares = [p.grad.pow(2).sum() for g in self.param_groups for p in g["params"]]
        norm = torch.stack(squares).sum().sqrt()
        return torch.where(norm > 1.0, norm, torch.ones_like(norm))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        clip = self._clip()
        for group in self.param_groups:
            first, second = group["betas"]
            if "step" in group:
                group["step"] += 1
            else:
                group["step"] = 1
            corrections = 1 - first ** group["step"], 1 - second ** group["step"]
            for p in group["params"]:
                grad = p.grad.div_(clip)
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
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


class Adan(Optimizer):
    """Keeps the negated gradient of the step before, made when the group's step is 1."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.98, 0.92, 0.99), "weight_decay": 0.02})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            b1, b2, b3 = group["betas"]
            c1, c2 = 1 - b1 ** group["step"], 1 - b2 ** group["step"]
            root = math.sqrt(1 - b3 ** group["step"])
            for p in group["params"]:
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


class RectifiedAdam(Optimizer):
    """Numbers of a step are kept in a table of the group, one row for each of ten steps."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        table = [[None, None, None] for _ in range(10)]
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.8), "buffer": table})

    def _row(self, group: dict[str, Any], step: int) -> tuple[float, float]:
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

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
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


class Rotating(Optimizer):
    """Keeps the last two gradients; each step the slots change places."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["old"], state["new"] = torch.zeros_like(p), torch.zeros_like(p)
                state["old"], state["new"] = state["new"], state["old"]
                state["new"].copy_(p.grad)
                p.add_(2 * state["new"] - state["old"], alpha=-group["lr"])


class Late(Optimizer):
    """A slot is None at first; an average of the weights appears at the third step."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
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


class SharedDistance(Optimizer):
    """D-adaptation: one scale for all parameters, from sums over all of them, in a group's tensor.

    A scale that is estimated from every parameter links them: no parameter's update stands alone.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "d": torch.tensor(1e-3), "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            inner, length = torch.zeros(()), torch.zeros(())
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["start"] = p.detach().clone()
                    state["sum"] = torch.zeros_like(p)
                inner += torch.dot(p.grad.flatten(), (state["start"] - p).flatten())
                state["sum"].add_(p.grad * group["d"])
                length += state["sum"].abs().sum()
            group["d"].copy_(torch.maximum(group["d"], (inner / length).clamp(max=1.0)))
            for p in group["params"]:
                p.sub_(group["lr"] * group["d"] * p.grad)
            group["k"] = group["k"] + 1


class Printing(Optimizer):
    """Truth values, comparisons and formats of hyper-parameters, as readable code has them."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": decay, "clip": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if not group["lr"] or not 0.0 <= group["lr"] < 1.0:
                raise ValueError(f"Invalid learning rate: {group['lr']:.3f}")
            self.message = f"lr {group['lr']:g}, decay {group['weight_decay']}"
            for p in group["params"]:
                grad = p.grad
                if group["weight_decay"]:
                    grad = grad + group["weight_decay"] * p
                if group["clip"] is not None:
                    grad = grad.clamp(-group["clip"], group["clip"])
                p.add_(grad, alpha=-float(group["lr"]))


def over(kind: Callable[..., Optimizer], **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return lambda model: kind(model.parameters(), **settings)


def grouped(model: nn.Module) -> Optimizer:
    """No decay for what has one dimension, as timm's and transformers' trainers group."""
    wide = [p for p in model.parameters() if p.ndim > 1]
    flat = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    return Lamb(groups)


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


def row(name: str, optimizer: Callable[[nn.Module], Optimizer], **more: Any) -> Idiom:
    batches = labelled((5, 6), 3, steps=6)
    return Idiom(f"optimizer_{name}", Mlp, batches, entropy, optimizer, **more)


IDIOMS = [
    row("lamb", over(Lamb)),
    row("lamb_with_groups", grouped),
    row("adan", over(Adan)),
    # Its table of ten steps grows with each of them: other states in each.
    row("rectified_adam", over(RectifiedAdam), stays_eager=EagerWarning),
    row("slots_that_rotate", over(Rotating)),
    row("slots_that_appear", over(Late)),
    row("shared_distance", over(SharedDistance)),
    row("formats", over(Printing)),
    row("numpy_rate", over(torch.optim.AdamW, lr=np.float64(1e-2))),
    row("numpy_rate_of_a_table", over(CosineByHand), stays_eager=EagerWarning),
]
