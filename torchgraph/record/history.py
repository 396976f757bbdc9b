"""Tensors that are kept from call to call with their history: a program has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._torch import is_freed
from ..errors import NoProgram
from .kept import tensors_of


def has_history(tensor: torch.Tensor) -> bool:
    """True for a tensor that a later ``backward()`` can go through, to what it was computed from.

    False once a ``backward()`` has freed what that takes: eager raises there.
    """
    if tensor.grad_fn is None:
        return False
    seen, left = {tensor.grad_fn}, [tensor.grad_fn]
    while left:
        node = left.pop()
        if is_freed(node):
            return False
        new = {below for below, _ in node.next_functions if below is not None} - seen
        seen |= new
        left += new
    return True


def with_history(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """The positions of those that have one."""
    return tuple(number for number, tensor in enumerate(tensors) if has_history(tensor))


class Histories:
    """Of what lay in the places of a step before it ran: ``values``."""

    def __init__(self, values: Iterable[Any]) -> None:
        tensors = (tensor for value in values for tensor in tensors_of(value))
        self._came = {id(tensor) for tensor in tensors if has_history(tensor)}

    def refusal(self, changes: Sequence[tuple[Any, Any, Any]]) -> NoProgram | None:
        """Why no program can stand for what the step puts there; None where one can.

        ``changes``: (place, what lay there, what it holds now). A later call may send gradients
        into what this one has computed, or this one does so into what an earlier one has.
        """
        for place, before, now in changes:
            if any(map(has_history, tensors_of(now))):
                return NoProgram(
                    f"{place.name} keeps the history of its tensor after the step, and a program "
                    "keeps none for a later backward()",
                    fix="keep it.detach(), or compute it under torch.no_grad(); or run in one step "
                    "all that one backward() goes through.",
                )
            if any(id(tensor) in self._came for tensor in tensors_of(before)):
                return NoProgram(
                    f"{place.name} comes with the history of an earlier call, which no program has",
                    fix="run in one step all that one backward() goes through.",
                )
        return None
