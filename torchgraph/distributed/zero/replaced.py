"""Replacement of a parameter by a DTensor wherever it is held."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..._torch.distributed.tensors import emptied
from ..._torch.tensors import share_hooks


def replace_parameters(
    made: Mapping[int, torch.Tensor],
    old: Sequence[torch.Tensor],
    modules: Iterable[nn.Module],
    optimizers: Iterable[Optimizer],
) -> None:
    """Let modules, optimizers, lists, dicts and closures hold the new parameters.

    What still holds an old one has a tensor without elements: nothing is computed with it silently.

    Args:
        made: by the identity of an old one, the new one.
        old: the old ones.
    """
    for one in old:
        new = made[id(one)]
        vars(new).update(vars(one))
        share_hooks(one, new)
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) in made:
                known: Any = made[id(parameter)]  # a DTensor that is a parameter
                module.register_parameter(name, known)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [made.get(id(one), one) for one in group["params"]]
    _replace_elsewhere(made, old)
    for one in old:
        one.grad = None
        one.requires_grad_(False)
        emptied(one)


def _replace_elsewhere(made: Mapping[int, torch.Tensor], old: Sequence[torch.Tensor]) -> None:
    """In the user's own lists, dicts and closures: ``params = list(model.parameters())``."""
    for holder in gc.get_referrers(*old):
        if holder is old or holder is made:
            continue
        if type(holder) is list:
            holder[:] = [_other(made, one) for one in holder]
        elif type(holder) is dict:
            items = [(_other(made, key), _other(made, value)) for key, value in holder.items()]
            holder.clear()
            holder.update(items)
        elif type(holder) is set:
            members = [_other(made, one) for one in holder]
            holder.clear()
            holder.update(members)
        elif isinstance(holder, types.CellType):
            holder.cell_contents = _other(made, holder.cell_contents)


def _other(made: Mapping[int, torch.Tensor], value: Any) -> Any:
    return made.get(id(value), value) if isinstance(value, torch.Tensor) else value
