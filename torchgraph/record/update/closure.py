"""Optimizers that re-evaluate the step through a closure, such as LBFGS: in eager alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...errors import UnsupportedOptimizer
from ...live.step import Step
from ...optimizers.rules import added_at, needs_closure, refusal
from ..ops.recorder import Recorder


class Evaluations:
    """The evaluations of one step through an optimizer's closure.

    Args:
        losses: the tensors that ``backward()`` was called on so far.
        again: runs forward and backward anew, without gradients at the start.
        count: the number of micro-batches, whose mean is the loss.
    """

    def __init__(self, losses: list[torch.Tensor], again: Callable[[], None], count: int) -> None:
        self._losses, self._again, self._count = losses, again, count

    def closure(
        self, optimizer: torch.optim.Optimizer, clip: Callable[[], None]
    ) -> tuple[Callable[[], torch.Tensor], ...]:
        """The closure for ``optimizer.step()``. The first evaluation was made already."""
        if not needs_closure(optimizer):
            return ()
        first = [self._loss()]

        def evaluate() -> torch.Tensor:
            if first:
                return first.pop()
            self._losses.clear()
            with torch.enable_grad():
                self._again()
            clip()
            return self._loss()

        return (evaluate,)

    def _loss(self) -> torch.Tensor:
        loss, *others = self._losses
        for other in others:
            loss = loss + other
        return loss if self._count == 1 else loss / self._count


def refused_early(step: Step, recorder: Recorder, strict: bool) -> bool:
    """True where no program can hold the step, as known before it runs.

    Raises:
        NoProgram: where ``strict`` wants it.
        UnsupportedOptimizer: one that eager cannot step either, in this company.
    """
    recorder.strict = strict
    if step.impossible:
        recorder.give_up(step.impossible)
    for optimizer in step.optimizers:
        error = refusal(optimizer, given=step.own_update)
        if error is None:
            continue
        name = type(optimizer).__name__
        company = len(step.optimizers) > 1 or step.scaler is not None
        if company and not step.own_update and needs_closure(optimizer):
            raise UnsupportedOptimizer(
                f"{name} evaluates the whole step as often as it asks for: not beside another "
                "optimizer, nor under a grad scaler, which torch refuses too.",
                where=added_at.get(optimizer),
                fix=f"give the Graph {name} alone.",
                falls_back=False,
            )
        recorder.refuse(error)
    return bool(recorder.gave_up)
