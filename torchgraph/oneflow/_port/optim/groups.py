"""Param groups in OneFlow's way: dicts that also have their parameters and options by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ....errors import InvalidOption

_CLIP = ("clip_grad_max_norm", "clip_grad_norm_type")


class ParamGroup(dict[str, Any]):
    """A param group of torch's. OneFlow: ``oneflow.optim.optimizer.ParamGroup``.

    Args:
        parameters: a dict with ``params`` and options. It is copied: the caller's stays as it is.
        default_options: what the dict leaves out.

    Raises:
        InvalidOption: one of the two options of the clipping by norm, and not the other.
    """

    def __init__(
        self, parameters: Mapping[str, Any], default_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__({**(default_options or {}), **parameters})
        given = [name for name in _CLIP if name in self]
        if len(given) == 1:
            raise InvalidOption(
                f"A param group has {given[0]} and not the other of {' and '.join(_CLIP)}. "
                "OneFlow clips nothing then, and does not say so.",
                fix="give both, or neither.",
            )

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters, torch's ``group["params"]``."""
        found: list[torch.Tensor] = self["params"]
        return found

    @property
    def options(self) -> dict[str, Any]:
        """A copy of what is beside the parameters."""
        return {name: value for name, value in self.items() if name != "params"}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def clip(self, *, error_if_nonfinite: bool) -> None:
        """Clip the gradients of the group by their norm; warn where the group does not ask for it.

        Raises:
            RuntimeError: the norm is not finite, with ``error_if_nonfinite``.
        """
        if not all(name in self for name in _CLIP):
            warnings.warn(
                "To enable clip_grad, passing the `clip_grad_max_norm` and `clip_grad_norm_type` "
                "parameters when instantializing the Optimizer.",
                stacklevel=3,
            )
            return
        max_norm, norm_type = (float(self[name]) for name in _CLIP)
        torch.nn.utils.clip_grad_norm_(
            self.parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )


def as_groups(params: Iterable[Any], **options: object) -> list[ParamGroup]:
    """The param groups of what an optimizer is given, with these options where they have none.

    Raises:
        TypeError: it is no iterable of parameters or dicts.
    """
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise TypeError(
            "params argument given to the optimizer should be an iterable of Tensors or dicts, "
            f"but got {type(params)}"
        )
    given = list(params)
    if given and not isinstance(given[0], dict):
        given = [{"params": given}]
    groups = [ParamGroup(group, options) for group in given]
    for group in groups:
        lone = isinstance(group["params"], torch.Tensor)
        group["params"] = [group["params"]] if lone else list(group["params"])
    return groups


def fused(groups: Iterable[ParamGroup], name: str, *, asked: bool) -> bool | None:
    """What torch is told for OneFlow's ``fused``: kernels of CUDA with the same numbers."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    if asked and not all(isinstance(p, torch.Tensor) and p.is_cuda for p in parameters):
        warnings.warn(f"Fused {name} only support cuda parameters.", stacklevel=3)
        return None
    return True if asked else None
