"""OneFlow's LAMB."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .... import optimizers
from .base import Dialect
from .groups import as_groups


class LAMB(Dialect, optimizers.LAMB):
    """LAMB with OneFlow's trust ratio. OneFlow: ``oneflow.optim.LAMB``.

    Other than `torchgraph.optim.LAMB`: a decoupled weight decay has no part in the trust ratio,
    and all parameters have one count of steps, also those that had no gradient yet.

    Args:
        params: parameters, or dicts of param groups.
        lr, betas, eps, weight_decay, adam_w_mode, do_bias_correction: as there.
        amsgrad: refused, as in OneFlow.

    Raises:
        InvalidOption: a setting out of its range, or ``amsgrad``.
    """

    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        adam_w_mode: bool = True,
        do_bias_correction: bool = True,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            as_groups(params),
            lr,
            (betas[0], betas[1]),
            eps,
            weight_decay,
            adam_w_mode,
            do_bias_correction,
            amsgrad,
            decay_in_trust_ratio=False,
        )

    def update_class(self, group: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """torchgraph's class: a group takes its step."""
        return optimizers.LAMB

    def _with_gradients(self, group: dict[str, Any]) -> list[torch.Tensor]:
        # All groups come here before any is updated: so each count is that of the steps before.
        found, fresh = super()._with_gradients(group), self.fresh(group)
        for parameter in fresh:
            self.state[parameter].update(self._first_slots(parameter))
        self.count_steps(group, fresh, updated=False)
        return found
