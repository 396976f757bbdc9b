"""Checks of the slots of a parameter: of a known optimizer, and of a user's own class."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from .trials import Slot
from .values import is_finite, is_number, is_plain, short, tensor_problem, unlike, unlike_own

Slots = Mapping[str, Any]


def known_problems(
    name: str, parameter: torch.Tensor, slots: Slots, expected: Mapping[str, Slot]
) -> Iterator[str]:
    """Problems of slots whose names, shapes and kinds are known from a first step."""
    yield from (f"{name}.{key}: missing" for key in expected if key not in slots)
    for key, value in slots.items():
        if type(key) is not str:
            yield f"{name}: has {short(key)} as a key"
        elif key in expected:
            yield from _slot_problems(f"{name}.{key}", key, parameter, value, expected[key])
        else:
            yield from _other_problems(f"{name}.{key}", parameter, value)


def own_problems(name: str, slots: Slots, own: Slots, somewhere: Collection[str]) -> Iterator[str]:
    """Problems of slots of a user's class, by comparison with the slots that exist now.

    Args:
        somewhere: the slots that any parameter has.
    """
    lost = (key for key in own if key not in slots and key in somewhere)
    yield from (f"{name}.{short(key)}: missing" for key in lost)
    for key, value in slots.items():
        like = own.get(key)
        if isinstance(like, torch.Tensor) and isinstance(value, torch.Tensor):
            # Loading casts to the dtype of the parameter: a mask that was loaded is of floats.
            real = not value.is_complex() and not like.is_complex()
            kind = like.new_empty((), dtype=value.dtype) if real else like
            if problem := tensor_problem(value, kind, tuple(like.shape)):
                yield f"{name}.{short(key)}: {problem}"
        elif like is not None:
            yield from unlike_own(f"{name}.{short(key)}", like, value)
        elif not is_plain(value) and not isinstance(value, Mapping):
            yield f"{name}.{short(key)}: is {short(value)}, which no slot is"


def _slot_problems(
    name: str, key: str, parameter: torch.Tensor, value: Any, slot: Slot
) -> Iterator[str]:
    like = slot.like
    if not isinstance(like, torch.Tensor):
        yield from unlike(name, like, value)
        return
    counts = key == "step" and not like.ndim
    if counts and is_number(value):  # as torch kept it long ago
        if not is_finite(value) or value < 0:
            yield f"{name}: is {short(value)}, not a count of steps"
        return
    shape = slot.shape_for(parameter)
    if problem := tensor_problem(value, like, shape):
        yield f"{name}: {problem}"
    elif (
        shape == ()
        and not like.is_complex()
        and not (is_finite(value) and (value >= 0 or not counts))
    ):
        yield f"{name}: is {short(value.item())}, not a finite number" + " of steps" * counts


def _other_problems(name: str, parameter: torch.Tensor, value: Any) -> Iterator[str]:
    """Problems of a slot that the current settings do not use."""
    if not isinstance(value, torch.Tensor):
        if value is not None and not isinstance(value, (bool, int, float)):
            yield f"{name}: is {short(value)}, which no slot is"
        return
    fits = not value.ndim or (
        value.ndim == parameter.ndim
        and all(size in (1, full) for size, full in zip(value.shape, parameter.shape, strict=True))
    )
    if problem := tensor_problem(value, parameter, None):
        yield f"{name}: {problem}"
    elif not fits:
        size = f"a parameter of {tuple(parameter.shape)}"
        yield f"{name}: has shape {tuple(value.shape)}, which does not fit {size}"
