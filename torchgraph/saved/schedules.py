"""Learning-rate schedules by name and numbers: those of torch, which hold no functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from .._torch.optimizers import blank_scheduler, has_custom_scale, schedulers_in
from ..errors import CheckpointDamaged, NotSavable

_KINDS: dict[str, type[LRScheduler]] = {
    kind.__name__: kind
    for kind in (
        lr_scheduler.ChainedScheduler,
        lr_scheduler.ConstantLR,
        lr_scheduler.CosineAnnealingLR,
        lr_scheduler.CosineAnnealingWarmRestarts,
        lr_scheduler.CyclicLR,
        lr_scheduler.ExponentialLR,
        lr_scheduler.LinearLR,
        lr_scheduler.MultiStepLR,
        lr_scheduler.OneCycleLR,
        lr_scheduler.PolynomialLR,
        lr_scheduler.ReduceLROnPlateau,
        lr_scheduler.SequentialLR,
        lr_scheduler.StepLR,
    )
}


def described(scheduler: LRScheduler, optimizers: Sequence[Optimizer]) -> dict[str, object]:
    """The description of a scheduler that `rebuilt` needs besides its state.

    Raises:
        NotSavable: it is of the user's class, or calls functions.
    """
    kind = type(scheduler)
    if _KINDS.get(kind.__name__) is not kind or has_custom_scale(scheduler):
        raise NotSavable(
            f"{kind.__name__} is a schedule of functions, which a file cannot hold.",
            fix="use one of torch's schedules of numbers (LinearLR, SequentialLR, ...), or do not "
            "give it to add_optimizer: step it yourself, and set the rates of what is loaded.",
        )
    number = [known is scheduler.optimizer for known in optimizers].index(True)
    inner = [described(one, optimizers) for one in schedulers_in(scheduler)]
    return {"kind": kind.__name__, "optimizer": number, "inner": inner}


def rebuilt(
    about: Mapping[str, Any], state: Mapping[str, Any], optimizers: Sequence[Optimizer]
) -> LRScheduler:
    """The scheduler that was described, in that state, with one of these optimizers."""
    scheduler = _blank(about, optimizers)
    scheduler.load_state_dict(dict(state))
    return scheduler


def _blank(about: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> LRScheduler:
    """A scheduler without a state, made without a call of its class, which would set rates."""
    if about["kind"] not in _KINDS:
        raise CheckpointDamaged(f"{about['kind']!r:.80} is no schedule of torch's.")
    inner = [_blank(one, optimizers) for one in about["inner"]]
    scheduler = blank_scheduler(_KINDS[about["kind"]], inner)
    scheduler.optimizer = optimizers[about["optimizer"]]
    return scheduler


def optimizer_over(groups: list[dict[str, Any]]) -> Optimizer:
    """An optimizer for a schedule, with these param groups and no real parameters."""
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in groups], lr=0.0)
    optimizer.param_groups = groups
    return optimizer
