"""OneFlow's schedules of one formula."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from torch.optim import Optimizer

from .....errors import InvalidOption
from .....options.checking import shown
from .base import LRScheduler


def _above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidOption(f"{name} must greater than zero, but got {shown(value)}")


def _factor(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidOption(f"{name} expected to be between 0 and 1, not {shown(value)}.")


class ConstantLR(LRScheduler):
    """``base_lr * factor`` before ``total_iters``, then ``base_lr``."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        _factor("Constant multiplicative factor", factor)
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        return base_lr * self.factor if step < self.total_iters else base_lr


class LinearLR(LRScheduler):
    """``base_lr`` by a factor that goes from one to another in ``total_iters`` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        _factor("Starting multiplicative factor", start_factor)
        _factor("Ending multiplicative factor", end_factor)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        if step >= self.total_iters:
            return base_lr * self.end_factor
        way = self.end_factor - self.start_factor
        return base_lr * (self.start_factor + way * (step / self.total_iters))


class StepLR(LRScheduler):
    """``base_lr`` by ``gamma`` every ``step_size`` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        step_size: int,
        gamma: float = 0.1,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        _above_zero("step_size", step_size)
        _above_zero("gamma", gamma)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        factor: float = self.gamma ** math.floor(step / self.step_size)
        return base_lr * factor


class MultiStepLR(LRScheduler):
    """``base_lr`` by ``gamma`` at each of the ``milestones``."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        if any(left >= right for left, right in itertools.pairwise(milestones)):
            raise InvalidOption(
                f"values in `list` milestone must be increasing, but got {shown(milestones)}"
            )
        _above_zero("gamma", gamma)
        self.milestones = milestones
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        factor: float = self.gamma ** bisect.bisect_right(self.milestones, step)
        return base_lr * factor


class ExponentialLR(LRScheduler):
    """``base_lr`` by ``gamma`` in every step."""

    def __init__(
        self, optimizer: Optimizer, gamma: float, last_step: int = -1, verbose: bool = False
    ) -> None:
        _above_zero("gamma", gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        factor: float = self.gamma**step
        return base_lr * factor


class PolynomialLR(LRScheduler):
    """From ``base_lr`` to ``end_learning_rate`` in ``decay_batch`` steps, by a power.

    With ``cycle`` the way down begins anew, each time longer; step 0 is as step 1 then.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        decay_batch: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        _above_zero("decay_batch", decay_batch)
        self.max_decay_steps = decay_batch
        self.end_learning_rate = end_learning_rate
        self.power = power
        self.cycle = cycle
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        length = self.max_decay_steps
        if self.cycle:
            step = step or 1
            length *= math.ceil(step / length)
        factor: float = (1 - min(step, length) / length) ** self.power
        return (base_lr - self.end_learning_rate) * factor + self.end_learning_rate


class CosineDecayLR(LRScheduler):
    """From ``base_lr`` to ``alpha * base_lr`` in ``decay_steps`` steps, by a cosine; then that."""

    def __init__(
        self,
        optimizer: Optimizer,
        decay_steps: int,
        alpha: float = 0.0,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        _above_zero("decay_steps", decay_steps)
        self.decay_steps = decay_steps
        self.alpha = alpha
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        if step >= self.decay_steps:
            return base_lr * self.alpha
        decay = 0.5 * (1 + math.cos(math.pi * step / self.decay_steps))
        return base_lr * ((1 - self.alpha) * decay + self.alpha)


class CosineAnnealingLR(LRScheduler):
    """Between ``base_lr`` and ``eta_min`` by a cosine that is low at ``T_max``, and up again."""

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,
        eta_min: float = 0.0,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        decay = 0.5 * (1 + math.cos(math.pi * step / self.T_max))
        return self.eta_min + (base_lr - self.eta_min) * decay


class CosineAnnealingWarmRestarts(LRScheduler):
    """`CosineAnnealingLR` that begins anew after ``T_0`` steps, then after ``T_mult`` times that.

    Each time from ``decay_rate`` times the rate before; after ``restart_limit`` restarts, if it is
    not 0, the rate is ``eta_min``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        decay_rate: float = 1.0,
        restart_limit: int = 0,
        last_step: int = -1,
        verbose: bool = False,
    ) -> None:
        if type(T_0) is not int or T_0 <= 0:
            raise InvalidOption(f"Expected positive integer T_0, but got {shown(T_0)}")
        if type(T_mult) is not int or T_mult < 1:
            raise InvalidOption(f"Expected integer T_mult >= 1, but got {shown(T_mult)}")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.decay_rate = decay_rate
        self.restart_limit = restart_limit
        super().__init__(optimizer, last_step, verbose)

    def get_lr(self, base_lr: float, step: int) -> float:  # type: ignore[override]
        """The rate in a step."""
        first, times = self.T_0, self.T_mult
        if times > 1:
            # OneFlow's own logarithm: where it rounds down, a restart is a step late there, too.
            cycle = math.floor(math.log(1 - step / first * (1 - times), times))
            length = times**cycle * first
            within: float = step - (1 - times**cycle) / (1 - times) * first
        else:
            cycle, length = step // first, first
            within = step - length * cycle
        if 0 < self.restart_limit <= cycle:
            return self.eta_min
        top: float = base_lr * self.decay_rate**cycle
        decay = 0.5 * (1 + math.cos(math.pi * within / length))
        return self.eta_min + (top - self.eta_min) * decay
