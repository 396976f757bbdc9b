"""The update of one call of a Graph: unscale, clip, scale learning rates, step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._torch.optimizers import groups_of
from .._torch.symbolic import clip_grad_norm
from ..distributed.replicas import Replicas
from ..options.options import Options
from .scaler import Scaling


def step(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    scaling: Scaling,
    options: Options,
    replicas: Replicas,
) -> tuple[int, ...]:
    """Make the update of one call in eager; return the numbers of the skipped optimizers."""
    average(optimizers, replicas)
    finish_gradients(optimizers, parameters, scaling, options)
    return take_steps(optimizers, scaling)


def finish_gradients(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    scaling: Scaling,
    options: Options,
) -> None:
    """Unscale and clip the gradients that the optimizers are to read."""
    unscale(optimizers, scaling, options)
    clip_gradients(optimizers, parameters, options)


def take_steps(optimizers: Sequence[torch.optim.Optimizer], scaling: Scaling) -> tuple[int, ...]:
    """Let the optimizers step, but for those that the scaler skips: the numbers of these."""
    skipped = tuple(number for number, found in scaling.found.items() if found.item())
    for number, optimizer in enumerate(optimizers):
        if number not in skipped:
            scaled_step(optimizer)
    scaling.update()
    return skipped


def average(optimizers: Sequence[torch.optim.Optimizer], replicas: Replicas) -> None:
    """Average the gradients of all optimizers over the ranks that train together."""
    replicas.average(p for opt in optimizers for group in groups_of(opt) for p in group["params"])


def unscale(
    optimizers: Sequence[torch.optim.Optimizer], scaling: Scaling, options: Options
) -> None:
    """Unscale the gradients of all optimizers."""
    if not scaling.active:
        return
    for number, optimizer in enumerate(optimizers):
        scaling.unscale(number, optimizer, explicit=options.clips or _clips(optimizer))


def clip_gradients(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    options: Options,
) -> None:
    """Clip the gradients of all optimizers. ``parameters``: in the order of the modules."""
    for optimizer in optimizers:
        clip(optimizer)
    if options.clips:
        owned = {id(p) for opt in optimizers for group in groups_of(opt) for p in group["params"]}
        together = [parameter for parameter in parameters if id(parameter) in owned]
        if options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(together, *options.clip_norm)
        if options.clip_value is not None:
            torch.nn.utils.clip_grad_value_(together, options.clip_value)


def _clips(optimizer: torch.optim.Optimizer) -> bool:
    keys = {"clip_grad_max_norm", "clip_grad_norm_type"}
    return any(keys & group.keys() for group in groups_of(optimizer))


def clip(optimizer: torch.optim.Optimizer) -> None:
    """Clip the gradients of each param group that has a clipping norm, by that norm."""
    for group in groups_of(optimizer):
        if "clip_grad_max_norm" in group or "clip_grad_norm_type" in group:
            max_norm = group.get("clip_grad_max_norm", 1.0)
            norm_type = float(group.get("clip_grad_norm_type", 2.0))
            clip_grad_norm(group["params"], max_norm, norm_type)


def scaled_step(optimizer: torch.optim.Optimizer, *closure: Any) -> None:
    """``optimizer.step()`` with each group's lr multiplied by its ``lr_scale``."""
    with _scaled_lr(optimizer):
        optimizer.step(*closure)


class _scaled_lr:
    """OneFlow's ``lr_scale``: multiplies a group's lr inside the Graph only."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = [group for group in groups_of(optimizer) if "lr_scale" in group]

    def __enter__(self) -> None:
        self._lrs = [group["lr"] for group in self._groups]
        for group in self._groups:
            group["lr"] = group["lr"] * group["lr_scale"]

    def __exit__(self, *error: object) -> None:
        for group, lr in zip(self._groups, self._lrs, strict=True):
            group["lr"] = lr
