"""OneFlow's schedules that are made of others, or of functions."""

from __future__ import annotations

import bisect
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from ....._torch.optimizers import INNER_SCHEDULERS, schedulers_in
from .....errors import InvalidOption
from .....options.checking import shown
from .base import LRScheduler


class LambdaLR(LRScheduler):
    """``base_lr`` by what a function says of the step; one function, or one for each group."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise InvalidOption(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_step, verbose)

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next step and set its rates."""
        self.last_step += 1
        pairs = zip(self.lr_lambdas, self.base_lrs, strict=True)
        self.update_lrs([base_lr * function(self.last_step) for function, base_lr in pairs])

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer; of functions None, of objects their attributes."""
        states = [
            None if isinstance(one, types.FunctionType) else vars(one).copy()
            for one in self.lr_lambdas
        ]
        return {**super().state_dict(), "lr_lambdas": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`."""
        rest = {key: value for key, value in state_dict.items() if key != "lr_lambdas"}
        super().load_state_dict(rest)
        for function, state in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if state is not None:
                vars(function).update(state)


class MultiplicativeLR(LambdaLR):
    """The rate before, by what a function says of the step; of releases after 0.9."""

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next step and set its rates."""
        self.last_step += 1
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if self.last_step > 0:
            pairs = zip(rates, self.lr_lambdas, strict=True)
            rates = [rate * function(self.last_step) for rate, function in pairs]
        self.update_lrs(rates)


class _OfOthers(LRScheduler):
    def _hold(self, schedulers: Sequence[LRScheduler]) -> None:
        vars(self)[INNER_SCHEDULERS] = list(schedulers)  # where a Graph looks for them

    @property
    def schedulers(self) -> Sequence[LRScheduler]:
        """Those that it is made of."""
        return schedulers_in(self)

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer, and the states of the schedules."""
        own = super().state_dict()
        del own[INNER_SCHEDULERS]
        return {**own, "schedulers": [one.state_dict() for one in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`."""
        rest = {key: value for key, value in state_dict.items() if key != "schedulers"}
        super().load_state_dict(rest)
        for one, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            one.load_state_dict(state)


class ChainedScheduler(_OfOthers):
    """Each schedule begins with the rate that the one before it says."""

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        if not isinstance(schedulers, (list, tuple)) or not all(
            isinstance(one, LRScheduler) for one in schedulers
        ):
            raise InvalidOption("ChainedScheduler expects a list of schedulers")
        if not schedulers:
            raise InvalidOption("length of list of schedulers must be greater than 0")
        optimizer = schedulers[0].optimizer
        _check_optimizers("ChainedScheduler", optimizer, schedulers)
        self._hold(schedulers)
        super().__init__(optimizer)

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next step and set its rates."""
        self.last_step += 1
        lrs = list(self.schedulers[0].base_lrs)
        for one in self.schedulers:
            lrs = [one.rate(lr, self.last_step) for lr in lrs]
            one.last_step = self.last_step
        self.update_lrs(lrs)


class SequentialLR(_OfOthers):
    """One schedule after the other, the next one from each of the ``milestones`` on.

    Args:
        optimizer, last_step, verbose: as in `LRScheduler`.
        schedulers: the schedules.
        milestones: a step for each but the first.
        interval_rescaling: for each milestone, or for all: the schedule counts its steps from
            there, and not from the first one of all.

    Raises:
        InvalidOption: numbers of them that do not fit, or another optimizer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        interval_rescaling: Sequence[bool] | bool = False,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        if not schedulers:
            raise InvalidOption("Sequential Schedulers expects at least one scheduler")
        _check_optimizers("Sequential Schedulers", optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise InvalidOption(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                f"the number of milestone points, not {len(schedulers)} and {len(milestones)}"
            )
        if isinstance(interval_rescaling, bool):
            interval_rescaling = [interval_rescaling] * len(milestones)
        flags = all(isinstance(one, bool) for one in interval_rescaling)
        if not flags or len(interval_rescaling) != len(milestones):
            raise InvalidOption(
                "'interval_rescaling' expects a bool or a list of bool with length be equal to "
                f"the number of milestones, not {shown(interval_rescaling)}"
            )
        self._hold(schedulers)
        self.milestones = list(milestones)
        self.interval_rescaling = list(interval_rescaling)
        super().__init__(optimizer, last_step, verbose)

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next step and set its rates."""
        self.last_step += 1
        step = self.last_step
        index = bisect.bisect_right(self.milestones, step)
        if index > 0 and self.interval_rescaling[index - 1]:
            step -= self.milestones[index - 1]
        current = self.schedulers[index]
        current.last_step = step
        self.update_lrs([current.rate(base_lr, step) for base_lr in self.base_lrs])


def _check_optimizers(name: str, optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> None:
    for index, one in enumerate(schedulers):
        if one.optimizer is not optimizer:
            raise InvalidOption(
                f"{name} expects all schedulers to belong to the same optimizer, but got "
                f"schedulers at index {index} to be different"
            )
