"""Checks of the slots of `torch.optim.LBFGS`: flat over all parameters, kept by the first.

No step of a few numbers says it: that would take a closure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .values import is_count, is_list, is_number, short, tensor_problem

_COUNTS = ("func_evals", "n_iter")
_NUMBERS = ("t", "H_diag", "prev_loss")
_FLAT = ("d", "prev_flat_grad")
_OF_FLAT = ("old_dirs", "old_stps")
_HISTORY = (*_OF_FLAT, "ro")


def lbfgs_problems(
    name: str,
    parameters: Sequence[torch.Tensor],
    group: Mapping[str, Any],
    states: Mapping[int, Any],
) -> Iterator[str]:
    """Problems that keep the slots from being loaded.

    Args:
        states: the slots by the number of the parameter, as a state has them.
    """
    yield from (f"{name}.{key}: belongs to the first parameter" for key in states if key != 0)
    if not (slots := states.get(0)):
        return
    if not isinstance(slots, Mapping):
        yield f"{name}.0: is {short(slots)}, not a dict"
        return
    steps = slots.get("n_iter")
    stepped = type(steps) is not int or steps > 0
    wanted = (*_COUNTS, *_NUMBERS, *_FLAT, *_HISTORY) if stepped else _COUNTS
    yield from (f"{name}.0.{key}: missing" for key in wanted if key not in slots)
    flat = parameters[0].new_empty(0)
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    size = sum(2 * p.numel() if p.is_complex() else p.numel() for p in parameters)
    for key, value in slots.items():
        if problem := _problem(key, value, flat, size, group):
            yield f"{name}.0.{short(key) if type(key) is not str else key}: {problem}"
    lengths = {len(slots[key]) for key in _HISTORY if is_list(slots.get(key))}
    if len(lengths) > 1:
        yield f"{name}.0: {', '.join(_HISTORY)} are of {sorted(lengths)} items, not of one length"


def _problem(
    key: object, value: Any, flat: torch.Tensor, size: int, group: Mapping[str, Any]
) -> str:
    if key in _COUNTS:
        return "" if is_count(value) else f"is {short(value)}, not a count"
    if key in _NUMBERS:
        return "" if _is_number(value) else f"is {short(value)}, not a number"
    if key in _FLAT:
        return tensor_problem(value, flat, (size,))
    if key not in (*_HISTORY, "al"):
        return "unexpected"
    if not is_list(value):
        return f"is {short(value)}, not a list"
    if key in _OF_FLAT:
        found = (tensor_problem(one, flat, (size,)) for one in value)
        return next(filter(None, found), "")
    if key == "al" and len(value) != group["history_size"]:
        return f"is {len(value)} items, not {group['history_size']}"
    free = key == "al"  # places that no step has used yet
    wrong = [one for one in value if not (_is_number(one) or (free and one is None))]
    return f"has {short(wrong[0])}, not a number" if wrong else ""


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided and not value.is_meta
        return plain and value.numel() == 1 and value.is_floating_point()
    return is_number(value)
