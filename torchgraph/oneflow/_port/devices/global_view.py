"""``oneflow.utils.global_view``: structures of tensors, and the mode that makes them global."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....distributed.words import env
from ..errors import NotPorted
from . import tensors
from .placement import placement as Placement


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return type(value)((name, _mapped(one, change)) for name, one in value.items())
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(one, change) for one in value)
    return change(value)


def to_global(
    input: Any,
    placement: Placement | None = None,
    sbp: Any = None,
    warn_on_non_tensor_leaf: bool = True,
    **kwargs: Any,
) -> Any:
    """Each tensor of nested dicts, lists and tuples as a tensor of all ranks; the rest stays.

    OneFlow: ``oneflow.to_global``, ``oneflow.utils.global_view.to_global``.

    Args:
        sbp: one, or a function of (the structure, a tensor) that gives it.
        warn_on_non_tensor_leaf: without effect: nothing is warned of.
    """

    def change(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return tensors.to_global(
            one, placement, sbp(input, one) if _is_rule(sbp) else sbp, **kwargs
        )

    return _mapped(input, change)


def _is_rule(sbp: Any) -> bool:
    return callable(sbp) and not hasattr(sbp, "kind")


def to_local(input: Any, *, copy: bool = False) -> Any:
    """Each tensor of nested dicts, lists and tuples as this rank holds it; the rest stays.

    OneFlow: ``oneflow.to_local``, ``oneflow.utils.global_view.to_local``.
    """
    return _mapped(
        input,
        lambda one: tensors.to_local(one, copy=copy) if isinstance(one, torch.Tensor) else one,
    )


class global_mode:
    """Let what is made inside be global. OneFlow: ``oneflow.utils.global_view.global_mode``.

    One process has the whole of each tensor already: nothing changes.

    Raises:
        NotPorted: of several ranks, where it is enabled.
    """

    def __init__(self, enabled: bool, placement: Placement | None = None, sbp: Any = None) -> None:
        if enabled and env.get_world_size() > 1:
            raise NotPorted(
                "global_mode is not here for several ranks: tensors are made where they are made.",
                fix="give placement= and sbp= to what makes them, or call to_global.",
            )
        _modes.append((enabled, placement, sbp))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _modes.pop()


class current_global_mode:
    """What the innermost `global_mode` says."""

    def __init__(self) -> None:
        self.is_enabled, self.placement, given = _modes[-1]
        self.sbp = given if given is None or isinstance(given, (list, tuple)) else (given,)


_modes: list[tuple[bool, Placement | None, Any]] = [(False, None, None)]
