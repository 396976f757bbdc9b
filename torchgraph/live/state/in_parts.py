"""A state of whole tensors for a Graph that holds parts of them: each rank takes its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..._torch.distributed.held import is_dtensor
from ..._torch.distributed.tensors import cut_like
from .held import Held


def in_parts(state: Any, held: Held, train: str) -> Any:
    """``state`` with DTensors where the Graph has DTensors of the same shapes.

    Args:
        train: the name of the entry of optimizers.
    """
    parameters = (p for module in held.modules.values() for p in module.parameters())
    if not isinstance(state, Mapping) or not any(map(is_dtensor, parameters)):
        return state
    found = dict(state.items())
    for name, module in held.modules.items():
        if isinstance(state.get(name), Mapping):
            found[name] = _like(state[name], module.state_dict())
    saved = state.get(train)
    if isinstance(saved, Mapping) and isinstance(saved.get("optimizers"), (list, tuple)):
        pairs = zip(held.optimizers, saved["optimizers"], strict=False)
        rest = saved["optimizers"][len(held.optimizers) :]
        optimizers = [*(_slots(optimizer, own) for optimizer, own in pairs), *rest]
        found[train] = {**saved, "optimizers": optimizers}
    return found


def _like(saved: Mapping[Any, Any], own: Mapping[str, Any]) -> Mapping[Any, Any]:
    cut = {key: _part(value, own.get(key)) for key, value in saved.items()}
    if all(cut[key] is value for key, value in saved.items()):
        return saved
    return cut


def _slots(optimizer: Optimizer, saved: Any) -> Any:
    states = saved.get("state") if isinstance(saved, Mapping) else None
    if not isinstance(states, Mapping):
        return saved
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    cut = {
        number: {key: _part(value, parameters[number]) for key, value in slots.items()}
        if type(number) is int and 0 <= number < len(parameters) and isinstance(slots, Mapping)
        else slots
        for number, slots in states.items()
    }
    return {**saved, "state": cut}


def _part(value: Any, like: Any) -> Any:
    whole = isinstance(value, torch.Tensor) and not is_dtensor(value)
    if whole and is_dtensor(like) and value.shape == like.shape:
        return cut_like(value, like)
    return value
