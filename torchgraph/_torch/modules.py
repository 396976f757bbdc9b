"""Private state of an nn.Module, as attributes and by their names."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import nn

children_of: Callable[[nn.Module], dict[str, nn.Module | None]] = operator.attrgetter("_modules")
parameters_of: Callable[[nn.Module], dict[str, nn.Parameter | None]] = operator.attrgetter(
    "_parameters"
)
buffers_of: Callable[[nn.Module], dict[str, torch.Tensor | None]] = operator.attrgetter("_buffers")
"""The dicts that a module itself looks names up in."""

STATE = ("_parameters", "_buffers", "_modules")
"""The names of these dicts."""

state_of: Callable[[nn.Module], tuple[dict[str, Any], ...]] = operator.attrgetter(*STATE)
state_in: Callable[[dict[str, Any]], tuple[dict[str, Any], ...]] = operator.itemgetter(*STATE)
"""These dicts, from the attributes of a module."""


def versions_of(state: object) -> Any:
    """The module versions in a ``state_dict()``; None where it has none."""
    return getattr(state, "_metadata", None) if isinstance(state, OrderedDict) else None


EXTRA_STATE = "_extra_state"
"""The suffix of a state dict entry that a module makes and reads itself."""


def loads_by_itself(module: nn.Module) -> bool:
    """True where a module reads its state in a way of its own, by other names for example."""
    loads = (type(module)._load_from_state_dict, type(module).load_state_dict)
    known = all(load.__module__.startswith("torch.nn.modules.") for load in loads)
    return not known or bool(module._load_state_dict_pre_hooks)


def set_versions(state: OrderedDict[str, Any], versions: object) -> None:
    """Let a state say what `versions_of` found."""
    state._metadata = versions  # type: ignore[attr-defined]  # as nn.Module.state_dict does


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
hooks_of: Callable[[nn.Module], tuple[dict[int, Any], ...]] = operator.attrgetter(*HOOKS)

FLAT_WEIGHTS = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Attributes that a recurrent module makes anew when they are out of date."""

BOOKKEEPING = FLAT_WEIGHTS | {
    "_is_full_backward_hook",
    "_is_hf_initialized",
    "_compiled_call_impl",
    "_version",
}
"""Guarded by structure, or of no effect on what forward computes."""


def is_of_module(attributes: Container[object]) -> bool:
    """True for the attributes of a module."""
    return "_parameters" in attributes


def is_initialized(attributes: dict[str, Any]) -> bool:
    """True for the attributes of a module whose ``nn.Module.__init__`` has run."""
    return isinstance(attributes.get("_modules"), dict)
