"""OneFlow's Adagrad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .base import Dialect
from .groups import as_groups


class Adagrad(Dialect, torch.optim.Adagrad):
    """Adagrad with OneFlow's defaults. OneFlow: ``oneflow.optim.Adagrad``.

    Other than torch's: ``lr`` is 1e-3 by default, not 1e-2; ``lr_decay`` counts the optimizer's
    steps, also those without a gradient; ``initial_accumulator_value`` may differ by group.

    Args:
        params: parameters, or dicts of param groups.
        lr, lr_decay, weight_decay, initial_accumulator_value, eps: as in torch.

    Raises:
        ValueError: a number out of its range.
    """

    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        lr_decay: float = 0.0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        groups = as_groups(params)
        super().__init__(groups, lr, lr_decay, weight_decay, initial_accumulator_value, eps)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"].fill_(group["initial_accumulator_value"])

    def update_class(self, group: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """torch's class: a group takes its step."""
        return torch.optim.Adagrad

    def _init_group(
        self,
        group: dict[str, Any],
        params_with_grad: list[torch.Tensor],
        grads: list[torch.Tensor],
        state_sums: list[torch.Tensor],
        state_steps: list[torch.Tensor],
    ) -> tuple[bool, bool]:
        self.count_steps(group, ())
        found: tuple[bool, bool] = super()._init_group(  # type: ignore[no-untyped-call]
            group, params_with_grad, grads, state_sums, state_steps
        )
        return found
