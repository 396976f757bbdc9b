"""What OneFlow's optimizers share: zeros for gradients, clipping, OneFlow's states, one count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ....optimizers.base import TakesStepOf
from .groups import ParamGroup, as_groups
from .states import is_oneflows, torchs_state


class Dialect(TakesStepOf):
    """The part of an optimizer that is OneFlow's, before a class of torch's in the bases."""

    slots: ClassVar[Mapping[str, str]] = {}
    """OneFlow's names of slots that torch names otherwise."""
    counts: ClassVar[bool] = False
    """True where each parameter has a slot ``step``."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a copy of a group; what it leaves out is the optimizer's default.

        Raises:
            InvalidOption: one of the two options of the clipping by norm, and not the other.
        """
        super().add_param_group(ParamGroup(param_group))

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set the gradients to zeros, or with ``set_to_none`` to None."""
        super().zero_grad(set_to_none)

    def clip_grad(self, error_if_nonfinite: bool = False) -> None:
        """Clip the gradients of each group by its ``clip_grad_max_norm``, ``clip_grad_norm_type``.

        A Graph does so by itself. A group without them is left as it is, with a warning.

        Raises:
            RuntimeError: a norm is not finite, with ``error_if_nonfinite``.
        """
        for group in self.param_groups:
            ParamGroup.clip(group, error_if_nonfinite=error_if_nonfinite)  # type: ignore[arg-type]

    @property
    def support_sparse(self) -> bool:
        """True where OneFlow takes it with ``is_sparse=True``; a Graph has rules of its own."""
        return False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state: one of torch's form, which ``state_dict`` gives, or of OneFlow's."""
        if is_oneflows(state_dict):
            groups, slots = self.param_groups, self.slots
            state_dict = torchs_state(state_dict, groups, slots, counts=self.counts)
        super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.param_groups[:] = [
            group if isinstance(group, ParamGroup) else ParamGroup(group)
            for group in self.param_groups
        ]

    def update_class(self, group: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """This class: the step is its own."""
        return type(self)

    # OneFlow counts the steps of the optimizer, torch those in which a parameter had a gradient.

    def fresh(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """The parameters of a group whose first gradient is there."""
        return [p for p in group["params"] if p.grad is not None and not self.state.get(p)]

    def count_steps(
        self, group: dict[str, Any], fresh: Sequence[torch.Tensor], *, updated: bool = True
    ) -> None:
        """Bring the counts of ``fresh`` to the optimizer's; count for those without a gradient.

        Args:
            updated: the groups before this one have counted this step already.
        """
        new = set(map(id, fresh))
        before = True
        for one in self.param_groups if fresh else ():
            before = before and one is not group
            known = (p for p in one["params"] if self.state.get(p) and id(p) not in new)
            if (parameter := next(known, None)) is not None:
                counted = self.state[parameter]["step"] - int(before and updated)
                for each in fresh:
                    self.state[each]["step"].copy_(counted)
                break
        for parameter in group["params"]:
            if parameter.grad is None and self.state.get(parameter):
                self.state[parameter]["step"] += 1


class Optimizer(Dialect):
    """The base of a user's optimizer. OneFlow: ``oneflow.optim.Optimizer``.

    Args:
        parameters: parameters, or dicts of param groups.
        options: the defaults of the param groups.
    """

    def __init__(self, parameters: Iterable[Any], options: dict[str, Any]) -> None:
        super().__init__(as_groups(parameters), options)

    @property
    def _default_options(self) -> dict[str, Any]:
        return self.defaults

    @property
    def _state(self) -> dict[Any, Any]:
        """OneFlow's name of the state, in which ``"step"`` is a number that starts at 0."""
        self.state.setdefault("step", 0)  # type: ignore[call-overload]  # beside the parameters
        return self.state
