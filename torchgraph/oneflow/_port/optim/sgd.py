"""OneFlow's SGD."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from ....errors import GraphWarning, warn
from .base import Dialect
from .groups import as_groups, fused as fused_kernels


class SGD(Dialect, torch.optim.SGD):
    """SGD with OneFlow's numbers. OneFlow: ``oneflow.optim.SGD``.

    Other than torch's: ``dampening`` holds from the first step; with ``maximize`` the weights
    decay away from 0; ``nesterov`` goes with a dampening. Without a momentum ``maximize`` is
    ignored, with a warning, and the parameters go down.

    Args:
        params: parameters, or dicts of param groups.
        lr: the learning rate.
        momentum, dampening, weight_decay, nesterov, maximize: see above.
        fused: kernels of CUDA over many parameters; the same numbers.
        contiguous_params: one piece of memory for all parameters, in OneFlow's later versions; the
            same numbers, and nothing here.

    Raises:
        ValueError: a number below 0.
    """

    slots: ClassVar[Mapping[str, str]] = {"momentum_buf": "momentum_buffer"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        fused: bool = False,
        *,
        contiguous_params: bool = False,
    ) -> None:
        groups = as_groups(params, nesterov=nesterov)
        super().__init__(
            groups,
            lr,
            momentum,
            dampening,
            weight_decay,
            maximize=maximize,
            fused=fused_kernels(groups, "SGD", asked=fused),
        )
        self.defaults["nesterov"] = nesterov  # torch's constructor takes none with a dampening

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a copy of a group; in one without a momentum ``maximize`` is False."""
        settings = {**self.defaults, **param_group}
        if settings["maximize"] and settings["momentum"] == 0.0:
            warn(
                "SGD(maximize=True) without a momentum goes down, as in OneFlow, which ignores it. "
                "To go up use torch.optim.SGD.",
                GraphWarning,
            )
            param_group = {**param_group, "maximize": False}
        super().add_param_group(param_group)

    @property
    def support_sparse(self) -> bool:
        """True: OneFlow takes it with ``is_sparse=True``."""
        return True

    def update_class(self, group: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """torch's class where a group takes its step, else this one."""
        other = group["dampening"] != 0 or (group["nesterov"] and group["momentum"] == 0)
        decays_away = group["maximize"] and group["weight_decay"] != 0
        return type(self) if other or decays_away else torch.optim.SGD

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        momentum_buffer_list: list[torch.Tensor | None],
    ) -> bool:
        sparse: bool = super()._init_group(  # type: ignore[no-untyped-call]
            group, params, grads, momentum_buffer_list
        )
        if group["momentum"] != 0 and group["dampening"] != 0:
            # From no buffer torch's first step takes the gradient as it is.
            momentum_buffer_list[:] = [
                torch.zeros_like(parameter) if buffer is None else buffer
                for parameter, buffer in zip(params, momentum_buffer_list, strict=True)
            ]
        if group["maximize"] and group["weight_decay"] != 0:
            # torch computes decay - gradient: it is to be -(gradient + decay).
            decay = 2 * group["weight_decay"]
            grads[:] = [
                gradient.add(parameter, alpha=decay)
                for parameter, gradient in zip(params, grads, strict=True)
            ]
        return sparse
