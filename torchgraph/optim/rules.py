"""Which optimizers can be traced, and the branch of torch.optim that a trace takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch.optim import Optimizer

from ..errors import UnsupportedOptimizer
from .sparse import check_sparse

_REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: (
        "its step evaluates a closure as often as the line search asks for, which one static "
        "program cannot do."
    ),
    torch.optim.SparseAdam: (
        "it needs sparse gradients, whose number of rows changes from step to step."
    ),
}

# The classes whose fused branch ends in kernels that `torchgraph.optim.fused` knows.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)

# The methods that decide what a slot starts from, in torch's classes and in `PerParameter`.
_SLOT_MAKERS = ("step", "_init_group", "_first_slots", "_update")


def check(optimizer: Optimizer, *, is_sparse: bool = False) -> None:
    """Raise UnsupportedOptimizer, with the reason, for what no static program can hold.

    ``is_sparse``: also for what cannot update single rows of a table (`sparse.check_sparse`).
    """
    if is_sparse:
        check_sparse(optimizer)
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
def eager_branches(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """`eager_branch` of all of them."""
    with ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(eager_branch(optimizer))
        yield


@contextmanager
def eager_branch(optimizer: Optimizer) -> Iterator[None]:
    """Let the step take the branch of torch.optim that the user asked for; each has its own bits.

    Where nobody asked, it is the one-tensor-at-a-time branch, on every device.
    """
    before = [dict(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "foreach" in group:
            group["foreach"] = bool(group["foreach"])
        if "fused" in group:
            group["fused"] = bool(group["fused"]) and isinstance(optimizer, _FUSED)
    try:
        yield
    finally:
        for group, values in zip(optimizer.param_groups, before, strict=True):
            group.update((name, values[name]) for name in ("foreach", "fused") if name in values)


def allocates_slots(optimizer: Optimizer) -> bool:
    """True when a slot's first value is what its allocation gives: for torch's steps and ours."""
    steps = (getattr(type(optimizer), name, None) for name in _SLOT_MAKERS)
    known = [inspect.unwrap(step).__module__ for step in steps if step is not None]
    return all(module.startswith(("torch.optim.", f"{__package__}.")) for module in known)
