"""OneFlow's FTRL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ....errors import InvalidOption
from ....optimizers.base import PerParameter, gradients
from ....options.checking import is_number, shown
from .base import Dialect
from .groups import as_groups


class Ftrl(Dialect, PerParameter):
    """FTRL, which makes small weights zero. OneFlow: ``oneflow.one_embedding.Ftrl``.

    For a parameter ``x`` of any shape with gradient ``g``, in real numbers of any dtype::

        g = g + weight_decay x
        n' = n + g^2                                        n is initial_accumulator_value at first
        z = z + g - (n'^lr_power - n^lr_power) / lr x       z is 0 at first
        x = 0 where |z| < lambda1
        x = (sign(z) lambda1 - z) / ((beta + n'^lr_power) / lr + lambda2) elsewhere

    Slots: ``accumulator_value`` for n, and ``z``.

    Args:
        params: parameters, or dicts of param groups.
        lr, weight_decay, lr_power, initial_accumulator_value, lambda1, lambda2, beta: see above.

    Raises:
        InvalidOption: what is no number, a rate or a weight decay below 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        weight_decay: float = 0.0,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        lambda1: float = 0.0,
        lambda2: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "lr_power": lr_power,
            "initial_accumulator_value": initial_accumulator_value,
            "lambda1": lambda1,
            "lambda2": lambda2,
            "beta": beta,
            "foreach": False,
        }
        super().__init__(as_groups(params), defaults)

    @staticmethod
    def _check_settings(group: dict[str, Any]) -> None:
        for name in ("lr_power", "initial_accumulator_value", "lambda1", "lambda2", "beta"):
            if not is_number(group[name]):
                raise InvalidOption(f"Invalid {name}: {shown(group[name])}")
        for name in ("lr", "weight_decay"):
            if not is_number(group[name]) or group[name] < 0.0:
                raise InvalidOption(f"Invalid {name}: {shown(group[name])}")

    @staticmethod
    def _first_slots(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"z": torch.zeros_like(parameter)}

    def _update(
        self, group: dict[str, Any], parameters: list[torch.Tensor], *, foreach: bool
    ) -> None:
        first, power, rate = group["initial_accumulator_value"], group["lr_power"], group["lr"]
        for parameter, gradient in zip(parameters, gradients(parameters), strict=True):
            slots = self.state[parameter]
            if "accumulator_value" not in slots:
                slots["accumulator_value"] = torch.full_like(parameter, first)
            if group["weight_decay"] != 0:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            squares, z = slots["accumulator_value"], slots["z"]
            before = squares.pow(power)
            after = squares.addcmul_(gradient, gradient).pow(power)
            sigma = (after - before).div_(rate)
            z.add_(gradient).addcmul_(sigma, parameter, value=-1)
            divisor = after.add_(group["beta"]).div_(rate).add_(group["lambda2"])
            shrunk = torch.copysign(torch.full_like(z, group["lambda1"]), z).sub_(z)
            is_small = z.abs() < group["lambda1"]
            parameter.copy_(shrunk.div_(divisor).masked_fill_(is_small, 0.0))
