"""Which optimizers can be traced, and the branch of torch.optim that a trace takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from ..errors import UnsupportedOptimizer

_REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: (
        "its step evaluates a closure as often as the line search asks for, which one static "
        "program cannot do."
    ),
    torch.optim.SparseAdam: (
        "it needs sparse gradients, whose number of rows changes from step to step."
    ),
}


def check(optimizer: Optimizer) -> None:
    """Raise UnsupportedOptimizer, with the reason, for what no static program can hold."""
    name = type(optimizer).__name__
    for refused, reason in _REFUSED.items():
        if isinstance(optimizer, refused):
            raise UnsupportedOptimizer(f"{name} cannot be part of a Graph: {reason}")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise UnsupportedOptimizer(
            f"{name}(differentiable=True) cannot be part of a Graph: autograd does not run through "
            "a step.",
            fix="leave differentiable out.",
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UnsupportedOptimizer(f"{name}.step() needs a closure, which a Graph has no use for.")


@contextmanager
def ordinary_branch(optimizer: Optimizer) -> Iterator[None]:
    """Let torch.optim take its one-tensor-at-a-time branch, whose arithmetic all others follow."""
    switches = [
        (group, name)
        for group in optimizer.param_groups
        for name in ("foreach", "fused")
        if name in group
    ]
    before = [group[name] for group, name in switches]
    for group, name in switches:
        group[name] = False
    try:
        yield
    finally:
        for (group, name), value in zip(switches, before, strict=True):
            group[name] = value
