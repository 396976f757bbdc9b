"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import ParamsT

from .._torch import foreach as many
from ..options.checking import fitting
from .base import PerParameter, check_common, gradients


class Lion(PerParameter):
    """Lion, from Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023),
    arXiv:2302.06675, Algorithm 2.

    For a parameter ``x`` of any shape with gradient ``g`` and momentum ``m``, which starts at 0::

        c = beta1 m + (1 - beta1) g
        x = x - lr (sign(c) + weight_decay x)
        m = beta2 m + (1 - beta2) g

    One slot for each parameter, ``exp_avg``, of its shape, dtype and device; half of Adam's memory.
    The sign of NaN is 0 in torch: a gradient of NaN stays in ``exp_avg`` and stops its element.
    Every element moves by ``lr``: take a learning rate 3 to 10 times smaller than AdamW's and a
    weight decay as many times larger.

    Args:
        params: Parameters, named parameters or param groups; real, of any floating dtype. 16-bit
            ones are updated in their own dtype, which rounds small steps away, as in torch.optim.
        lr: Learning rate, a number.
        betas: ``beta1`` for the update, ``beta2`` for the momentum.
        weight_decay: Decoupled weight decay.
        maximize: Go up instead of down.
        foreach: One op over many tensors: faster on CUDA, where it is the default, and for many
            small tensors on the CPU, slower for large ones there. The same bits on the CPU, where
            it leaves 16-bit parameters out.

    Raises:
        InvalidOption: a setting out of its range, one given as a tensor, or a complex parameter.
    """

    __module__ = "torchgraph.optim"  # where it is imported from

    @fitting
    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
        }
        self._check_settings(defaults)
        super().__init__(params, defaults)

    @staticmethod
    def _check_settings(group: dict[str, Any]) -> None:
        check_common(group)

    @staticmethod
    def _first_slots(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"exp_avg": torch.zeros_like(parameter)}

    def _update(
        self, group: dict[str, Any], parameters: list[torch.Tensor], *, foreach: bool
    ) -> None:
        update = foreach_lion if foreach else lion
        update(
            parameters,
            gradients(parameters),
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            Settings(*(group[name] for name in Settings._fields)),
        )


class Settings(NamedTuple):
    """The settings of a param group that an update reads."""

    lr: float
    betas: tuple[float, float]
    weight_decay: float
    maximize: bool


def lion(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    settings: Settings,
) -> None:
    """Run one step of Lion in place, one tensor at a time. The formulas are those of `Lion`."""
    lr, (beta1, beta2), weight_decay, maximize = settings
    for param, grad, exp_avg in zip(params, grads, exp_avgs, strict=True):
        if maximize:
            grad = -grad
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        param.add_(exp_avg.lerp(grad, 1 - beta1).sign_(), alpha=-lr)
        exp_avg.lerp_(grad, 1 - beta2)


def foreach_lion(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    settings: Settings,
) -> None:
    """`lion` with one op over all tensors, which share device and dtype."""
    lr, (beta1, beta2), weight_decay, maximize = settings
    if maximize:
        grads = many.neg(grads)
    if weight_decay != 0:
        many.mul_(params, 1 - lr * weight_decay)
    updates = many.lerp(exp_avgs, grads, 1 - beta1)
    many.sign_(updates)
    many.add_(params, updates, alpha=-lr)
    many.lerp_(exp_avgs, grads, 1 - beta2)
