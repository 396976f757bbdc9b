"""Descriptions of the arguments of calls, and of the argument that differs between two."""

from __future__ import annotations

import weakref

import numpy as np
import torch

from .inputs import Call, leaves, paths
from .step import Step

_SHOWN = 60
"""Characters of a value in a message."""


class Arguments:
    """A description of the arguments of one call. Keeps no batch and no object alive."""

    def __init__(self, call: Call) -> None:
        self._key = call.key
        given = list(leaves(call.args, call.kwargs))
        self._found = {path: _look(value) for path, value in given}
        self._shapes = {path: _shape_of(value) for path, value in given}

    def moved(self, now: Call) -> str:
        """The first argument that differs in ``now``; empty where none does, or it is unknown."""
        if now.key == self._key:
            return ""
        for path, value in leaves(now.args, now.kwargs):
            if path not in self._found:
                return f"{path} is new"
            was, found = self._found[path], _look(value)
            if was[0] != found[0]:
                other = f"was {was[1]} and is {found[1]}"
                return f"{path} {other if was[1] != found[1] else f'is another {_bare(found[1])}'}"
        return ""

    def resized(self, now: Call) -> int | None:
        """The dimension that alone is of another size in ``now``; None where more is another."""
        found = set()
        for path, value in leaves(now.args, now.kwargs):
            was, is_now = self._shapes.get(path), _shape_of(value)
            if was != is_now:
                if was is None or is_now is None or len(was) != len(is_now):
                    return None
                found |= {dim for dim, size in enumerate(was) if size != is_now[dim]}
        return found.pop() if len(found) == 1 else None


def _shape_of(value: object) -> tuple[int, ...] | None:
    return _shape(value) if isinstance(value, torch.Tensor) else None


def in_a_state(step: Step, call: Call) -> str:
    """The argument that lies in the memory of a state, and the way out; empty where none does."""
    if not step.shares_memory(call.tensors):
        return ""
    for path, given in zip(paths(call.args, call.kwargs), call.tensors, strict=True):
        for _, leaf in step.tensors():
            if step.shares_memory([given], [leaf.value]):
                return (
                    f"{path} lies in the memory of {leaf.fqn}, a state: read {leaf.fqn} in the "
                    f"function instead of passing it, or pass {path}.detach().clone()"
                )
    return "an argument lies in the memory of a state"


def _look(value: object) -> tuple[object, str]:
    """(a key that is equal for equal values, a description)."""
    if isinstance(value, torch.Tensor):
        kind = f"{str(value.dtype).removeprefix('torch.')}{list(_shape(value))}"
        meta = (value.device, value.layout, value.requires_grad)
        return (kind, *meta), f"a tensor {kind}"
    if isinstance(value, np.ndarray):
        kind = f"{value.dtype}{list(value.shape)}"
        return (kind, value.tobytes()), f"an array {kind}"
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return (type(value), repr(value)), f"{value!r:.{_SHOWN}}"
    name = f"a {type(value).__name__}"
    try:
        return weakref.ref(value), name  # of two objects, unlike even where both are gone
    except TypeError:
        return id(value), name


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


def _bare(words: str) -> str:
    return words.partition(" ")[2]
