"""The base of OneFlow's schedules: a rate from a base rate and the number of a step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer


class LRScheduler(torch.optim.lr_scheduler.LRScheduler):
    """A schedule of learning rates. OneFlow: ``oneflow.optim.lr_scheduler._LRScheduler``.

    A subclass says ``get_lr(base_lr, step)``: the rate in a step, by the rate that the param group
    had at first. A Graph steps it once per call; in eager, call ``step()`` after the optimizer's.

    Args:
        optimizer: whose param groups get the rates.
        last_step: the number of the step before the first one; -1: this is the start.
        verbose: print each rate that is set.

    Raises:
        TypeError: it is no optimizer.
        KeyError: a ``last_step``, and a param group without an ``initial_lr``.
    """

    def __init__(self, optimizer: Optimizer, last_step: int = -1, verbose: bool = False) -> None:
        # torch's constructor is left out: it would count, and warn of orders that OneFlow allows.
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer object")
        self.optimizer = optimizer
        self.last_step = last_step
        self.verbose = verbose
        self._init_base_lrs()
        self.step()

    def _init_base_lrs(self) -> None:
        for index, group in enumerate(self.optimizer.param_groups):
            if self.last_step == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{index}] when resuming "
                    "an optimizer"
                )
        self.base_lrs: list[float] = [  # type: ignore[assignment]  # no tensors, as in OneFlow
            group["initial_lr"] for group in self.optimizer.param_groups
        ]

    @property
    def last_epoch(self) -> int:
        """torch's name of `last_step`."""
        return self.last_step

    @last_epoch.setter
    def last_epoch(self, value: int) -> None:
        self.last_step = value

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step.

        Args:
            base_lr: the param group's first rate.
            step: 0, 1, ...
        """
        raise NotImplementedError(f"{type(self).__name__} does not say get_lr(base_lr, step).")

    def rate(self, base_lr: float, step: int) -> float:
        """`get_lr`, for schedules that are made of others."""
        return self.get_lr(base_lr, step)

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next step and set its rates."""
        self.last_step += 1
        self.update_lrs([self.rate(base_lr, self.last_step) for base_lr in self.base_lrs])

    def update_lrs(self, lrs: Sequence[float]) -> None:
        """Set the rate of each param group."""
        self._last_lr = []
        for index, (group, lr) in enumerate(zip(self.optimizer.param_groups, lrs, strict=False)):
            group["lr"] = lr
            self._last_lr.append(lr)
            if self.verbose:
                self.print_lr(index, lr)

    def print_lr(self, group: int, lr: float) -> None:
        """Print the rate of a param group."""
        sys.stdout.write(
            f"Last step {self.last_step} of {type(self)} adjusting learning rate of "
            f"param_groups[{group}] to {lr:.5f}\n"
        )

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer."""
        return {key: value for key, value in vars(self).items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`, of OneFlow's too; the rates of the optimizer stay."""
        vars(self).update(state_dict)


class LrScheduler(LRScheduler):
    """The base of OneFlow before 0.7, whose ``get_lr()`` returns a list.

    OneFlow: ``oneflow.nn.optimizer.lr_scheduler.LrScheduler``. A subclass reads ``last_step`` and
    ``base_lrs``. One that says ``get_lr(base_lr, step)`` is a `LRScheduler`.
    """

    def rate(self, base_lr: float, step: int) -> float:
        """The rate that ``get_lr()`` gives when it reads this base rate and this step."""
        if self._is_newer():
            return super().rate(base_lr, step)
        kept = self.base_lrs, self.last_step
        self.base_lrs, self.last_step = [base_lr], step
        try:
            return self.get_lr()[0]  # type: ignore[call-arg, index, no-any-return]
        finally:
            self.base_lrs, self.last_step = kept

    def _is_newer(self) -> bool:
        return bool(inspect.signature(self.get_lr).parameters)

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next step and set its rates."""
        if self._is_newer():
            super().step()
            return
        self.last_step += 1
        self.update_lrs(self.get_lr())  # type: ignore[call-arg, arg-type]
