"""Base of torchgraph's optimizers: checks, the closure, one tensor or many at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from ..errors import InvalidOption
from ..options.checking import is_number, shown

_KINDS = (torch.Tensor, torch.nn.Parameter)


class TakesStepOf(Optimizer):
    """An optimizer whose param groups may take the step of another class, in its very ops."""

    @abstractmethod
    def update_class(self, group: dict[str, Any]) -> type[Optimizer]:
        """The class whose step the param group takes."""


class PerParameter(Optimizer):
    """An optimizer whose update of a parameter needs that parameter, its gradient and its slots."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it leaves out is the optimizer's default.

        Raises:
            InvalidOption: a setting out of its range, or a complex parameter. No group is added.
        """
        self._check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        if any(torch.is_complex(parameter) for parameter in self.param_groups[-1]["params"]):
            del self.param_groups[-1]
            raise InvalidOption(f"{type(self).__name__} does not support complex parameters")

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: Evaluates the model again and returns the loss.

        Returns:
            What ``closure`` returned.

        Raises:
            RuntimeError: a gradient is sparse. Nothing has been updated then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [(group, self._with_gradients(group)) for group in self.param_groups]
        for group, parameters in work:
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter].update(self._first_slots(parameter))
            if self._many_at_a_time(group, parameters):
                for alike in _by_device_and_dtype(parameters):
                    self._update(group, alike, foreach=not _rounds_numbers(alike[0]))
            else:
                self._update(group, parameters, foreach=False)
        return loss

    def _with_gradients(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """The parameters of the group to update now."""
        found = [parameter for parameter in group["params"] if parameter.grad is not None]
        if any(parameter.grad.is_sparse for parameter in found):
            raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
        return found

    def _many_at_a_time(self, group: dict[str, Any], parameters: Iterable[torch.Tensor]) -> bool:
        """The group's ``foreach``, or by default True on CUDA, as in torch.optim."""
        if group["foreach"] is not None:
            return bool(group["foreach"])
        return all(each.is_cuda and type(each) in _KINDS for each in parameters)

    @staticmethod
    @abstractmethod
    def _check_settings(group: dict[str, Any]) -> None:
        """Raise InvalidOption for what is out of its range."""

    @staticmethod
    @abstractmethod
    def _first_slots(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state of a parameter before its first step."""

    @abstractmethod
    def _update(
        self, group: dict[str, Any], parameters: list[torch.Tensor], *, foreach: bool
    ) -> None:
        """Run one step; with ``foreach`` the parameters are of one device and one dtype."""


def gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def check_common(group: dict[str, Any]) -> None:
    """Raise InvalidOption for a learning rate, betas, weight decay or flag that no step can use."""
    lr, betas, weight_decay = group["lr"], group["betas"], group["weight_decay"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise InvalidOption(f"Invalid betas, two are needed: {shown(betas)}")
    if any(isinstance(value, torch.Tensor) for value in (lr, weight_decay, *betas)):
        raise InvalidOption("lr, betas and weight_decay as Tensors are not supported, pass floats")
    if not is_number(lr) or lr < 0.0:
        raise InvalidOption(f"Invalid learning rate: {shown(lr)}")
    for index, beta in enumerate(betas):
        if not is_number(beta) or not 0.0 <= beta < 1.0:
            raise InvalidOption(f"Invalid beta parameter at index {index}: {shown(beta)}")
    if not is_number(weight_decay) or weight_decay < 0.0:
        raise InvalidOption(f"Invalid weight_decay value: {shown(weight_decay)}")
    check_flags(group, "maximize")
    if group["foreach"] is not None:
        check_flags(group, "foreach")


def check_flags(group: dict[str, Any], *names: str) -> None:
    """Raise InvalidOption for one of these settings that is neither True nor False."""
    for name in names:
        if type(group[name]) is not bool:
            raise InvalidOption(f"Invalid {name}, True or False is needed: {shown(group[name])}")


def _rounds_numbers(parameter: torch.Tensor) -> bool:
    """On the CPU torch's ``_foreach_mul_`` rounds a beta of 0.999 to bfloat16's 1.0."""
    return parameter.is_cpu and parameter.itemsize < 4


def _by_device_and_dtype(parameters: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for parameter in parameters:
        alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return alike.values()
