"""Optimizers that a program can hold, and the branch of torch.optim that a trace takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from .._torch.optimizers import SLOT_MAKERS, groups_of
from ..errors import UnsupportedOptimizer
from ..lines import SourceLine
from .base import TakesStepOf

added_at: MutableMapping[Optimizer, SourceLine] = WeakIdKeyDictionary()
"""The user's line that gave an optimizer to a Graph."""

_REFUSED: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: (
        "its step evaluates a closure as often as the line search asks for, which one static "
        "program cannot do."
    ),
    torch.optim.SparseAdam: (
        "it needs sparse gradients, whose number of rows changes from step to step."
    ),
}

# The classes whose fused branch ends in kernels that `torchgraph.optimizers.fused` knows.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)

_BRANCHES = ("foreach", "fused")
"""The settings that choose a branch of torch.optim."""

KNOWN_MODULES = (
    "torch.optim.",
    "torchgraph.optim.",
    f"{__package__}.",
    "torchgraph.oneflow._port.optim.",
)
"""The modules of optimizers with known steps and slots: torch's and ours."""

# The methods that decide what a slot starts from, in torch's classes and in `PerParameter`.
_SLOT_MAKERS = (*SLOT_MAKERS, "_first_slots", "_update")


def refusal(
    optimizer: Optimizer, *, given: bool = False, where: SourceLine | None = None
) -> UnsupportedOptimizer | None:
    """The reason why no static program can hold an optimizer's step; None when none is known.

    ``given``: the user's code calls the step, ``where``, with a closure if it takes one. How often
    that is evaluated is seen in the recording.
    """
    what, fix = _refused(optimizer, given=given)
    if not what:
        return None
    return UnsupportedOptimizer(what, where=where or added_at.get(optimizer), fix=fix)


def _refused(optimizer: Optimizer, *, given: bool) -> tuple[str, str]:
    """(why no static program can hold its step, the way out); empty texts."""
    name = type(optimizer).__name__
    for refused, reason in _REFUSED.items():
        if isinstance(optimizer, refused):
            return f"{name} cannot be part of a program: {reason}", ""
    if any(group.get("differentiable") for group in groups_of(optimizer)):
        what = "cannot be part of a program: autograd does not run through a step."
        return f"{name}(differentiable=True) {what}", "leave differentiable out."
    if any(group.get("fused") for group in groups_of(optimizer)):
        scaled = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        if any(one is not None for one in scaled):
            what = "with a grad_scale or a found_inf cannot be part of a program yet."
            return f"{name}(fused=True) {what}", "leave fused=True out."
    if not given and needs_closure(optimizer):
        what = "needs a closure, which a program cannot call as often as it asks."
        return f"{name}.step() {what}", ""
    return "", ""


def needs_closure(optimizer: Optimizer) -> bool:
    """True when its ``step()`` takes a closure and has none by default."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


@contextmanager
def eager_branches(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Enter `eager_branch` for each optimizer."""
    with ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(eager_branch(optimizer))
        yield


@contextmanager
def eager_branch(optimizer: Optimizer) -> Iterator[None]:
    """Let the step take the branch of torch.optim that the user asked for; each has its own bits.

    Where nobody asked, it is the one-tensor-at-a-time branch, on every device.
    """
    groups = groups_of(optimizer) if _is_known(optimizer) else []
    before = [{key: group[key] for key in _BRANCHES if key in group} for group in groups]
    for group in groups:
        if "foreach" in group:
            group["foreach"] = bool(group["foreach"])
        if "fused" in group:
            group["fused"] = bool(group["fused"]) and isinstance(optimizer, _FUSED)
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)


def _is_known(optimizer: Optimizer) -> bool:
    """True for torch's optimizers, ours and what derives from them: these names are theirs."""
    bases = (cls.__module__ for cls in type(optimizer).__mro__ if cls not in (Optimizer, object))
    return any(module.startswith(KNOWN_MODULES) for module in bases)


def steps_as_known(optimizer: Optimizer) -> bool:
    """True where its ``step()`` is torch's or ours: a closure is evaluated once, before all else.

    But for the optimizers that `refusal` knows.
    """
    return _has_known_module(type(optimizer).step)


def allocates_slots(optimizer: Optimizer) -> bool:
    """True when a slot's first value is what its allocation gives: for torch's steps and ours."""
    steps = (getattr(type(optimizer), name, None) for name in _SLOT_MAKERS)
    return all(_has_known_module(step) for step in steps if step is not None)


def _has_known_module(method: Callable[..., object]) -> bool:
    """True for a method of torch's or ours; code that `exec` runs may be of no module at all."""
    return str(inspect.unwrap(method).__module__).startswith(KNOWN_MODULES)


def update_class(optimizer: Optimizer, group: dict[str, Any]) -> type[Optimizer]:
    """The class whose step a param group takes: where a class of ours names one, that one."""
    if isinstance(optimizer, TakesStepOf) and allocates_slots(optimizer):  # no step of the user's
        return optimizer.update_class(group)
    return type(optimizer)
