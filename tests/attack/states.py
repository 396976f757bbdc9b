"""What states are loaded into: optimizers and schedules of torch's and of users', and damage."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import optim
from torch.optim import lr_scheduler as lr

import torchgraph as tg


class Plain(optim.Optimizer):
    """Gradient descent; `also` is what others do besides."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, **settings})

    def also(self, group: dict[str, Any], parameter: torch.Tensor, slots: dict[Any, Any]) -> None:
        """Nothing."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                slots = self.state[parameter]
                slots["n"] = slots.get("n", 0) + 1
                self.also(group, parameter, slots)
                parameter.sub_(parameter.grad, alpha=group["lr"])


class AllKinds(Plain):
    """Slots of all kinds."""

    def __init__(self, parameters):
        super().__init__(parameters, bound=None, mode="plain")

    def also(self, group, parameter, slots):
        slots.setdefault("last", []).append(parameter.grad.clone())
        slots.setdefault("mask", parameter > 0)


class LateSlot(Plain):
    def also(self, group, parameter, slots):
        if slots["n"] > 2:
            slots.setdefault("slow", torch.zeros_like(parameter)).add_(parameter.grad)


class KeepsAside(Plain):
    def also(self, group, parameter, slots):
        kept = self.state["all"]
        kept["n"] = kept.get("n", 0) + 1


class Buffers(Plain):
    def __init__(self, parameters):
        super().__init__(parameters, buffer=[[None, None] for _ in range(3)], history=[])

    def also(self, group, parameter, slots):
        group["buffer"][slots["n"] % 3] = [slots["n"], 0.5]
        group["history"] = [*group["history"], slots["n"]]


class LateSettings(Plain):
    def __init__(self, parameters):
        super().__init__(parameters, scale=None)

    def also(self, group, parameter, slots):
        group["scale"] = torch.ones(3)
        group["info"] = {"steps": slots["n"]}


class OwnForm(Plain):
    """As wrappers write it: no 'state', no 'param_groups'."""

    def state_dict(self):
        return {"inner": super().state_dict(), "k": 5}

    def load_state_dict(self, state):
        super().load_state_dict(state["inner"])


class Remembers(lr.LRScheduler):
    """A list that grows, a flag that comes late, a word that is None at first."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.history: list[int] = []
        self.phase: str | None = None
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.history.append(self.last_epoch)
        if self.last_epoch > 1:
            self.seen, self.phase = True, "warm"
        return [base * 0.9**self.last_epoch for base in self.base_lrs]


class Factor:
    """Called by LambdaLR, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, epoch: int) -> float:
        self.seen.append(epoch)
        return 0.9**epoch


def none(optimizer: optim.Optimizer) -> None:
    """No schedule."""


def of(kind: Any, **settings: Any) -> Any:
    return lambda parameters: kind(parameters, **settings)


OPTIMIZERS: dict[str, Any] = {
    "AdamW": of(optim.AdamW, lr=0.05),
    "SGD": of(optim.SGD, lr=0.05, momentum=0.9),
    "RMSprop": of(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "NAdam": of(optim.NAdam, lr=0.01),
    "Adafactor": of(optim.Adafactor, lr=0.01),
    "Adagrad": of(optim.Adagrad, lr=0.01),
    "LAMB": of(tg.optim.LAMB, lr=0.01),
    "Lion": of(tg.optim.Lion, lr=0.01),
    "ASGD": of(optim.ASGD, lr=0.01),
    "Adadelta": optim.Adadelta,
    "Adam": lambda p: optim.Adam(p, lr=torch.tensor(0.1), foreach=False),
    "Adamax": optim.Adamax,
    "AdamW, amsgrad": of(optim.AdamW, amsgrad=True, maximize=True),
    "AdamW, fused": of(optim.AdamW, fused=True),
    "LBFGS": of(optim.LBFGS, max_iter=3),
    "LBFGS, wolfe": of(optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "Muon": optim.Muon,
    "RAdam": optim.RAdam,
    "Rprop": optim.Rprop,
    "SGD, plain": optim.SGD,
    "slots of all kinds": AllKinds,
    "late slot": LateSlot,
    "kept aside": KeepsAside,
    "buffers": Buffers,
    "late settings": LateSettings,
    "own form": OwnForm,
}
SCHEDULES: dict[str, Any] = {
    "none": none,
    "chain": lambda o: lr.ChainedScheduler([lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)], o),
    "constant": lr.ConstantLR,
    "cosine": lambda o: lr.CosineAnnealingLR(o, 5),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
    "cyclic": lambda o: lr.CyclicLR(o, 0.1, 0.2, 2, cycle_momentum=True),
    "cyclic by a function": lambda o: lr.CyclicLR(o, 0.1, 0.2, 2, scale_fn=lambda x: 0.5),
    "exponential": lambda o: lr.ExponentialLR(o, 0.9),
    "lambda": lambda o: lr.LambdaLR(o, lambda epoch: 0.9**epoch),
    "factor": lambda o: lr.LambdaLR(o, Factor()),
    "linear": lr.LinearLR,
    "milestones": lambda o: lr.MultiStepLR(o, [1, 1, 4]),
    "multiplicative": lambda o: lr.MultiplicativeLR(o, Factor()),
    "one cycle": lambda o: lr.OneCycleLR(o, 0.1, 40),
    "one short cycle": lambda o: lr.OneCycleLR(o, 0.1, 6),  # at its end after the second time
    "polynomial": lr.PolynomialLR,
    "plateau": lambda o: lr.ReduceLROnPlateau(o, patience=1),
    "sequence": lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, 0.5), lr.CosineAnnealingLR(o, 9)], [3]
    ),
    "sequence of users": lambda o: lr.SequentialLR(
        o, [lr.LambdaLR(o, Factor()), Remembers(o)], [3]
    ),
    "step": lambda o: lr.StepLR(o, 2, 0.5),
    "a user's": Remembers,
}
GONE = object()
"""In the place of a value: it is deleted."""


def put(state: Any, value: Any, *path: Any) -> Any:
    """A copy with another value in a place."""
    state = copy.deepcopy(state)
    found = state
    for key in path[:-1]:
        found = found[key]
    if value is GONE:
        del found[path[-1]]
    else:
        found[path[-1]] = value
    return state


def same_bits(left: Any, right: Any) -> bool:
    """Equal throughout, and NaN is NaN."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        alike = left.dtype == right.dtype and left.shape == right.shape
        return alike and left.layout == right.layout and torch.equal(bits(left), bits(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same_bits(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_bits, left, right))
    return bool(left == right) or (left != left and right != right)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
