"""OneFlow's Adam and AdamW."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from .base import Dialect
from .groups import as_groups, fused as fused_kernels


class _Adam(Dialect, torch.optim.Adam):
    counts = True

    _step_of: type[torch.optim.Optimizer]
    """torch's class, whose step a group takes that corrects the bias."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0,
        amsgrad: bool = False,
        do_bias_correction: bool = True,
        fused: bool = False,
        *,
        contiguous_params: bool = False,
    ) -> None:
        if fused and amsgrad:
            warnings.warn(
                f"Fused {type(self).__name__} is not supported when amsgrad=True.", stacklevel=2
            )
        groups = as_groups(params, do_bias_correction=do_bias_correction)
        kernels = fused_kernels(groups, type(self).__name__, asked=fused and not amsgrad)
        pair: Any = tuple(betas)
        super().__init__(groups, lr, pair, eps, weight_decay, amsgrad, fused=kernels)
        self.defaults["do_bias_correction"] = do_bias_correction

    def update_class(self, group: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """torch's class where a group takes its step, else this one."""
        return self._step_of if group["do_bias_correction"] else type(self)

    @property
    def support_sparse(self) -> bool:
        """True: OneFlow takes it with ``is_sparse=True``."""
        return True

    def _init_group(
        self,
        group: dict[str, Any],
        params_with_grad: list[torch.Tensor],
        grads: list[torch.Tensor],
        exp_avgs: list[torch.Tensor],
        exp_avg_sqs: list[torch.Tensor],
        max_exp_avg_sqs: list[torch.Tensor],
        state_steps: list[torch.Tensor],
    ) -> bool:
        fresh = self.fresh(group)
        found: bool = super()._init_group(  # type: ignore[no-untyped-call]
            group,
            params_with_grad,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            state_steps,
        )
        self.count_steps(group, fresh)
        if not group["do_bias_correction"]:
            for step in state_steps:
                step += 1
            # After infinitely many steps the corrections 1 - beta^t are 1.
            state_steps[:] = [torch.full_like(step, math.inf) for step in state_steps]
        return found


class Adam(_Adam):
    """Adam with OneFlow's numbers. OneFlow: ``oneflow.optim.Adam``.

    Other than torch's: ``do_bias_correction``, and one count of steps for all parameters, also
    those that had no gradient yet.

    Args:
        params: parameters, or dicts of param groups.
        lr, betas, eps, amsgrad: as in torch.
        weight_decay: an L2 penalty.
        do_bias_correction: False: without the divisions by ``1 - beta^t``.
        fused: kernels of CUDA over many parameters; the same numbers.
        contiguous_params: one piece of memory for all parameters, in OneFlow's later versions; the
            same numbers, and nothing here.

    Raises:
        ValueError: a number out of its range.
    """

    _step_of = torch.optim.Adam


class AdamW(_Adam, torch.optim.AdamW):
    """AdamW with OneFlow's numbers: no weight decay by default. OneFlow: ``oneflow.optim.AdamW``.

    Other than torch's: as `Adam`, and the default of ``weight_decay`` is 0, not 0.01.

    Args:
        params: parameters, or dicts of param groups.
        lr, betas, eps, amsgrad: as in torch.
        weight_decay: decoupled.
        do_bias_correction: False: without the divisions by ``1 - beta^t``.
        fused, contiguous_params: as in `Adam`.

    Raises:
        ValueError: a number out of its range.
    """

    _step_of = torch.optim.AdamW
