"""Gradients that `build` touches: refused where they are not final yet, returned when they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._torch import pytree, storage_id
from ..errors import GradientNotFinal
from ..options import Options
from ..program import Phase, Role
from .scaler import Scaling
from .step import Step
from .trail import Trail


class Gradients:
    """The gradients of the stand-ins of one step, between ``backward()`` and the update."""

    def __init__(
        self, step: Step, standins: Sequence[Any], scaling: Scaling, options: Options, trail: Trail
    ) -> None:
        self._scaling = scaling
        self._micro_batches = options.micro_batches if step.optimizers else 1
        self._trail = trail
        leaves = [(i, leaf) for i, leaf in step.tensors() if leaf.role is Role.PARAMETER]
        self._names = {id(standins[i]): leaf.fqn for i, leaf in leaves}
        self._parameters: list[torch.Tensor] = [standins[i] for i, _ in leaves]
        owned = (
            (number, parameter)
            for number, optimizer in enumerate(step.optimizers)
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        self._owners = {id(standins[step.index[id(p)]]): number for number, p in owned}

    def check(self, arguments: Any) -> None:
        """Refuse an op of `build` that reads a gradient which eager would not have yet.

        Raises:
            GradientNotFinal: it is scaled, or that of one micro-batch.
        """
        running = self._trail.backward_runs and self._trail.phase is Phase.FORWARD
        if not running or not (self._scaling.active or self._micro_batches > 1):
            return
        found = {storage_id(p.grad): p for p in self._parameters if p.grad is not None}
        for value in pytree.tree_leaves(arguments):
            parameter = found.get(storage_id(value)) if isinstance(value, torch.Tensor) else None
            if parameter is not None:
                self._refuse_reading(parameter)

    def final(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter of an optimizer whose ``.grad`` a returned tensor is; None for others."""
        for parameter in self._parameters:
            if parameter.grad is tensor and id(parameter) in self._owners:
                return parameter
        return None

    def _refuse_reading(self, parameter: torch.Tensor) -> None:
        name = self._names[id(parameter)]
        if self._micro_batches > 1:
            raise GradientNotFinal(
                f"build computes with the gradient of {name}, which is that of one micro-batch.",
                where=self._trail.line,
                fix="clip with config.set_clip_grad_norm, set_clip_grad_value or by param group; "
                "return the parameter's .grad itself to have it.",
            )
        if not self._scaling.is_unscaled(self._owners.get(id(parameter), -1)):
            raise GradientNotFinal(
                f"build computes with the gradient of {name}, which is still scaled.",
                where=self._trail.line,
            )
