"""OneFlow's RMSprop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ....errors import InvalidOption
from ....optimizers.base import PerParameter, gradients
from ....options.checking import is_number, shown
from .base import Dialect
from .groups import as_groups

_NUMBERS = ("lr", "alpha", "eps", "weight_decay")


class RMSprop(Dialect, PerParameter):
    """RMSprop with OneFlow's numbers. OneFlow: ``oneflow.optim.RMSprop``.

    For a parameter ``x`` of any shape with gradient ``g``, in real numbers of any dtype::

        g = g + weight_decay x
        s = alpha s + (1 - alpha) g^2
        m = alpha m + (1 - alpha) g                       with ``centered``, else 0
        x = x - lr g / sqrt(s - m^2 + eps)

    Other than torch's: ``eps`` is inside of the root, ``lr`` is 1e-3 by default, not 1e-2, and
    there is no momentum. Slots: ``square_avg``, ``grad_avg`` with ``centered``.

    Args:
        params: parameters, or dicts of param groups.
        lr, alpha, eps, weight_decay, centered: see above.
        momentum: 0.

    Raises:
        InvalidOption: a momentum, or a number below 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        alpha: float = 0.99,
        eps: float = 1e-08,
        weight_decay: float = 0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "foreach": False,
        }
        super().__init__(as_groups(params), defaults)

    @staticmethod
    def _check_settings(group: dict[str, Any]) -> None:
        if group["momentum"] != 0.0:
            raise InvalidOption(
                "Not support momentum greater than zeros now!",
                fix="leave momentum out, or use torch.optim.RMSprop, whose eps is outside of the "
                "root.",
            )
        for name in _NUMBERS:
            if not is_number(group[name]) or group[name] < 0.0:
                raise InvalidOption(f"Invalid {name}: {shown(group[name])}")

    @staticmethod
    def _first_slots(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"square_avg": torch.zeros_like(parameter)}

    def _update(
        self, group: dict[str, Any], parameters: list[torch.Tensor], *, foreach: bool
    ) -> None:
        rest = 1 - group["alpha"]
        for parameter, gradient in zip(parameters, gradients(parameters), strict=True):
            slots = self.state[parameter]
            if group["weight_decay"] != 0:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            square_avg = slots["square_avg"]
            square_avg.mul_(group["alpha"]).addcmul_(gradient, gradient, value=rest)
            inside = square_avg
            if group["centered"]:
                if "grad_avg" not in slots:
                    slots["grad_avg"] = torch.zeros_like(parameter)
                mean = slots["grad_avg"].lerp_(gradient, rest)
                inside = square_avg.addcmul(mean, mean, value=-1)
            root = inside.add(group["eps"]).sqrt_()
            parameter.addcdiv_(gradient, root, value=-group["lr"])
