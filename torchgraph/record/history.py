"""Tensors kept between calls with their autograd history, which no program has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from .._torch import is_freed, is_view_of_leaf
from ..effects.entry_state import Item, tensors_inside
from ..errors import SourceLine
from ..ir.aliasing import is_leaf
from ..ir.program import Role
from ..live.step import Leaf


def has_history(tensor: torch.Tensor) -> bool:
    """True for a tensor through which a later ``backward()`` can reach earlier computation.

    False once a ``backward()`` has freed the saved tensors: eager raises there.
    """
    node = grad_fn_of(tensor)
    if node is None:
        return False
    seen, left = {node}, [node]
    while left:
        node = left.pop()
        if is_freed(node):
            return False
        new = {below for below, _ in node.next_functions if below is not None} - seen
        seen |= new
        left += new
    return True


def grad_fn_of(tensor: torch.Tensor) -> torch.autograd.graph.Node | None:
    """``tensor.grad_fn``; None for a view that torch has given up for a write under no_grad."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def with_history(tensors: Iterable[object]) -> tuple[int, ...]:
    """The positions of the tensors that have a history."""
    return tuple(
        number
        for number, tensor in enumerate(tensors)
        if isinstance(tensor, torch.Tensor) and has_history(tensor)
    )


class _Met(NamedTuple):
    """A tensor from before the step."""

    leaf: Leaf
    tensor: torch.Tensor
    came_from: torch.autograd.graph.Node | None
    came_live: bool


class Histories:
    """The autograd histories of tensors at the entry and exit of one step.

    Args:
        values: the values in containers before the step.
        line_of: gives the line that made a tensor.
    """

    def __init__(
        self, values: Iterable[object], line_of: Callable[[torch.Tensor], SourceLine | None]
    ) -> None:
        self._line_of = line_of
        tensors = (tensor for value in values for tensor in tensors_inside(value))
        self._stored_tensors = {id(tensor) for tensor in tensors if has_history(tensor)}
        self._met: list[_Met] = []

    def met(self, leaf: Leaf, tensor: torch.Tensor) -> None:
        """Register a state, an argument or a free tensor, which the step may write."""
        self._met.append(_Met(leaf, tensor, tensor.grad_fn, has_history(tensor)))

    def why(self, changes: Iterable[tuple[Item, object, object]]) -> str:
        """The reason that no program can stand for the step; empty where one can.

        A later call may send gradients into what this one has computed, or this one has sent some
        into an earlier one's results. ``changes``: (place, value before, value now).
        """
        stored_tensors = (self._of_place(*change) for change in changes)
        return next(filter(None, [*stored_tensors, *map(self._of_met, self._met)]), "")

    def _of_place(self, place: Item, before: object, now: object) -> str:
        for tensor in filter(has_history, tensors_inside(now)):
            return self._kept(place.name, tensor)
        produced = any(id(tensor) in self._stored_tensors for tensor in tensors_inside(before))
        return _produced(place.name) if produced else ""

    def _of_met(self, met: _Met) -> str:
        name, now = _words(met), _now(met)
        if is_leaf(now) and now.grad is not None and has_history(now.grad):
            return self._kept(f"{name}.grad", now.grad)
        if grad_fn_of(now) is met.came_from or is_view_of_leaf(now):
            return ""  # torch renews the node of a view
        if has_history(now):
            return self._kept(name, now)
        return _produced(name) if met.came_live else ""

    def _kept(self, name: str, tensor: torch.Tensor) -> str:
        line = self._line_of(tensor)
        return (
            f"{name} keeps its history after the step, for a later backward(), and a program has "
            f"none{f' (at {line})' if line else ''}: keep it.detach(), or compute it under "
            "torch.no_grad(); or run in one step all that one backward() goes through"
        )


def _now(met: _Met) -> torch.Tensor:
    """The present value of a state's place."""
    now = met.leaf.now() if met.leaf.in_module else met.tensor
    return now if isinstance(now, torch.Tensor) else met.tensor


def _words(met: _Met) -> str:
    outside = met.leaf.role is Role.FREE
    return f"a tensor of shape {tuple(met.tensor.shape)}" if outside else met.leaf.fqn


def _produced(name: str) -> str:
    return (
        f"{name} comes with the history of an earlier call, which no program has: run in one step "
        "all that one backward() goes through"
    )
