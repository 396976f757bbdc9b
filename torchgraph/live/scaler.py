"""A GradScaler's part in a step: scaled first gradients, unscaled ones, steps that are skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from .. import library
from .._torch.distributed.held import as_dtensor, layout_of, local
from .._torch.optimizers import groups_of, unscales_itself
from .._torch.tensors import indices_of, values_of
from ..distributed.dtensors import most
from ..errors import NotSupported
from ..ir.names import scaler_key
from .step import SCALER_NUMBERS, SCALER_TENSORS, Leaf


class Scaling:
    """The scaler of one step, over plain numbers or over numbers that move.

    Args:
        values: ``scale`` and what else a scaler holds; empty where nothing is scaled.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.dynamic = "growth_tracker" in self._values
        self.active = bool(self._values)
        self.found: dict[int, torch.Tensor] = {}
        """For each optimizer, by number, a 0-dim float32 tensor: not 0 when it must not step."""
        self._unscaled: set[int] = set()

    @classmethod
    def over(cls, leaves: Iterable[Leaf], values: Iterable[object]) -> Scaling:
        """The scaling of a step with these leaves, by the values that stand for them."""
        pairs = zip(leaves, values, strict=False)
        found = ((scaler_key(leaf.fqn), value) for leaf, value in pairs)
        return cls({key: value for key, value in found if key})

    def scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient that ``backward()`` of the scaled loss hands on to the loss."""
        if not self.active:
            return gradient
        factor = self._values["scale"]
        if isinstance(factor, torch.Tensor):
            factor = factor.to(gradient.device)
        result: torch.Tensor = gradient * factor
        return result.to(gradient.dtype)

    def is_unscaled(self, number: int) -> bool:
        """True when the gradients of that optimizer are as without a scaler."""
        return not self.active or number in self._unscaled

    def check(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        unreduced: Iterable[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Refuse what `unscale` would refuse, while the step can be taken back.

        ``unreduced``: parameters, and what has their gradients until the ranks have met.
        """
        holders = {id(parameter): holder for parameter, holder in unreduced}
        for number, optimizer in enumerate(optimizers):
            if not self.is_unscaled(number):
                _check(number, optimizer, _with_gradient(optimizer, holders))

    def unscale(
        self, number: int, optimizer: torch.optim.Optimizer, *, explicit: bool = False
    ) -> None:
        """Do as ``scaler.unscale_(optimizer)``, once a step.

        ``explicit``: eager would call it, since something happens to the gradients before the step.

        Raises:
            NotSupported: a gradient is float16, or there is none.
        """
        if self.is_unscaled(number):
            return
        self._unscaled.add(number)
        parameters = _with_gradient(optimizer)
        _check(number, optimizer, parameters)
        with torch.no_grad():
            if self.dynamic:
                divide = not explicit and _scales_itself(optimizer)
                self._unscale_and_look(number, parameters, divide)
            else:
                inverse = 1.0 / self._values["scale"]
                for parameter in parameters:
                    parameter.grad = parameter.grad * inverse

    def _unscale_and_look(
        self, number: int, parameters: Sequence[torch.Tensor], divide: bool
    ) -> None:
        scale = self._values["scale"]
        found = []
        for device in dict.fromkeys(parameter.device for parameter in parameters):
            here = [parameter for parameter in parameters if parameter.device == device]
            zero = torch.zeros((), dtype=torch.float32, device=device)
            given: list[Any] = [parameter.grad for parameter in here]
            gradients = [_values(gradient) for gradient in given]
            *unscaled, hit = library.unscale(gradients, zero, scale.to(device), divide)
            for parameter, before, now in zip(here, given, unscaled, strict=True):
                parameter.grad = _with_values(before, now)
            found.append(most(hit, given).to(scale.device))
        self.found[number] = _sum(found)

    def update(self) -> None:
        """The effect of ``scaler.update()`` after all optimizers."""
        if self.dynamic:
            state = [self._values[name] for name in SCALER_TENSORS]
            numbers = [self._values[name] for name in SCALER_NUMBERS]
            library.update_scale_(state, _sum(self.found.values()), *numbers)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """The part of a gradient that is unscaled: the values of a sparse one, in eager."""
    return values_of(gradient) if gradient.is_sparse else local(gradient)


def _with_values(gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if not gradient.is_sparse:
        layout = layout_of(gradient)
        return values if layout is None else as_dtensor(values, layout)
    return torch.sparse_coo_tensor(
        indices_of(gradient),
        values,
        gradient.shape,
        is_coalesced=gradient.is_coalesced(),
        check_invariants=False,  # they hold: the indices are those of a gradient
    )


def _sum(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    first, *others = tensors
    for other in others:
        first = first + other
    return first


def _check(number: int, optimizer: torch.optim.Optimizer, found: Sequence[torch.Tensor]) -> None:
    name = f"optimizer {number} ({type(optimizer).__name__})"
    if not found:
        raise NotSupported(
            f"The grad scaler finds no gradient for {name}.",
            fix="let backward() reach its parameters, or leave the optimizer out.",
        )
    if unscales_itself(optimizer) and not _is_torchs(optimizer):
        raise NotSupported(
            f"Under a grad scaler {name} unscales and skips by itself, in a way of its own.",
            fix="take _step_supports_amp_scaling from the optimizer: the Graph unscales and skips.",
        )
    gradients = (parameter.grad for parameter in found)
    if any(grad is not None and grad.dtype is torch.float16 for grad in gradients):
        raise NotSupported(
            f"The grad scaler cannot unscale the float16 gradients of {name}.",
            fix="keep the parameters in float32 and compute in float16 with config.enable_amp.",
        )


def _with_gradient(
    optimizer: torch.optim.Optimizer,
    holders: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> list[torch.Tensor]:
    given = [p for group in groups_of(optimizer) for p in group["params"]]
    held = [holders.get(id(parameter), parameter) for parameter in given]
    return [one for one in held if one.grad is not None]


def _scales_itself(optimizer: torch.optim.Optimizer) -> bool:
    """True where eager leaves the unscaling to the optimizer's fused kernel."""
    return any(group.get("fused") for group in groups_of(optimizer))


def _is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")
