"""OneFlow's Adadelta."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from ....errors import InvalidOption
from .base import Dialect
from .groups import as_groups


class Adadelta(Dialect, torch.optim.Adadelta):
    """Adadelta; its numbers are torch's. OneFlow: ``oneflow.optim.Adadelta``.

    Args:
        params: parameters, or dicts of param groups.
        lr, rho, eps, weight_decay: as in torch.
        maximize: refused, as in OneFlow.

    Raises:
        InvalidOption: ``maximize``.
        ValueError: a number out of its range.
    """

    slots: ClassVar[Mapping[str, str]] = {"square_avgs": "square_avg", "acc_deltas": "acc_delta"}
    counts = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-06,
        weight_decay: float = 0,
        maximize: bool = False,
    ) -> None:
        super().__init__(as_groups(params), lr, rho, eps, weight_decay, maximize=maximize)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a copy of a group.

        Raises:
            InvalidOption: ``maximize``.
        """
        if {**self.defaults, **param_group}["maximize"]:
            raise InvalidOption(
                "Adadelta(maximize=True) is refused in OneFlow, whose graphs and eager mode would "
                "give different results.",
                fix="use torch.optim.Adadelta to go up.",
            )
        super().add_param_group(param_group)

    def update_class(self, group: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """torch's class: a group takes its step."""
        return torch.optim.Adadelta
