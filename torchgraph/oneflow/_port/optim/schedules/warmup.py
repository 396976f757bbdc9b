"""OneFlow's warm-up before another schedule."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer

from .....errors import InvalidOption
from .....options.checking import shown
from .base import LRScheduler
from .compound import SequentialLR
from .plain import ConstantLR, LinearLR


class WarmupLR(SequentialLR):
    """First from a part of the rate to the rate, then another schedule, or that rate.

    OneFlow: ``oneflow.optim.lr_scheduler.WarmUpLR``, and ``WarmupLR``.

    Args:
        scheduler_or_optimizer: the schedule that follows, or the optimizer.
        warmup_factor: the part of the rate at the start.
        warmup_iters: the steps of the warm-up.
        warmup_method: ``"linear"``: a ramp, to what the schedule says of step ``warmup_iters``, or
            to the rate itself with ``warmup_prefix`` or without a schedule. ``"constant"``: the
            same part all the time.
        warmup_prefix: the schedule begins with its step 0 after the warm-up; else it goes on as if
            it had run all the time.
        last_step, verbose: as in `LRScheduler`.

    Raises:
        InvalidOption: no warm-up and no schedule; a method that is none; rates of param groups that
            differ, where the ramp leads to a schedule's.
    """

    def __init__(
        self,
        scheduler_or_optimizer: LRScheduler | Optimizer,
        warmup_factor: float = 1.0 / 3,
        warmup_iters: int = 5,
        warmup_method: str = "linear",
        warmup_prefix: bool = False,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        given: Any = scheduler_or_optimizer
        if not isinstance(given, (LRScheduler, Optimizer)):
            raise InvalidOption(
                "'scheduler_or_optimizer' must be a LRScheduler or an Optimizer, but got "
                f"{type(given)}"
            )
        if warmup_method not in ("linear", "constant"):
            raise InvalidOption(
                f"'warmup_method' must be 'linear' or 'constant', but got {shown(warmup_method)}"
            )
        scheduler = given if isinstance(given, LRScheduler) else None
        if scheduler is None and warmup_iters <= 0:
            raise InvalidOption(
                "When 'scheduler_or_optimizer' is an optimizer warmup_iters can't be equal to 0"
            )
        self.warmup_factor = warmup_factor
        self.warmup_iters = warmup_iters
        self.warmup_method = warmup_method
        self.warmup_prefix = warmup_prefix
        self.optimizer = given.optimizer if isinstance(given, LRScheduler) else given
        self.last_step = last_step
        self.verbose = verbose
        self._init_base_lrs()
        inner = [self._warmup(scheduler)] if warmup_iters > 0 else []
        inner += [scheduler] if scheduler is not None else []
        between = len(inner) - 1
        super().__init__(
            self.optimizer,
            inner,
            [warmup_iters] * between,
            [warmup_prefix] * between,
            last_step,
            verbose,
        )

    def _warmup(self, scheduler: LRScheduler | None) -> LRScheduler:
        given = (self.optimizer, self.warmup_factor)
        if self.warmup_method == "constant":
            return ConstantLR(*given, self.warmup_iters, self.last_step, self.verbose)
        end_factor = 1.0
        if scheduler is not None and not self.warmup_prefix:
            base_lr = self.base_lrs[0]
            if not all(math.isclose(lr, base_lr, rel_tol=1e-5) for lr in self.base_lrs):
                raise InvalidOption(
                    "The param_groups in optimizer have different warmup configs, please use "
                    "different optimizers."
                )
            end_factor = scheduler.rate(base_lr, self.warmup_iters) / base_lr
        return LinearLR(*given, end_factor, self.warmup_iters, self.last_step, self.verbose)
