"""Ops in float64: their values as if nothing were rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.copies import blank, is_expanded
from ..ir.ops import wait_for_collective
from ..random_state import TorchRandomState
from .run import arguments

Values = Mapping[fx.Node, Any]

aten = torch.ops.aten
_OF_BITS = frozenset({aten.view.dtype, aten.nextafter.default})
"""They look at bits, which are others in another dtype."""
_DROPOUT = aten.native_dropout.default


def to_float64(value: Any) -> Any:
    """``value`` with its floats in float64 and its complex numbers in complex128."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return value.to(torch.float64)
        return value.to(torch.complex128) if value.is_complex() else value
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return each(value, map(to_float64, value))
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            return torch.float64
        return torch.complex128 if value.is_complex else value
    return value


def each(value: Any, items: Iterable[Any]) -> Any:
    """``items`` as a plain list or tuple, as ``value`` is, which may be one of fx's classes."""
    return list(items) if isinstance(value, list) else tuple(items)


def like(value: Any, model: Any) -> Any:
    """``value`` in dtype and strides of ``model``; unchanged where shapes differ."""
    if isinstance(value, (list, tuple)) and isinstance(model, (list, tuple)):
        return each(value, map(like, value, model))
    if not isinstance(value, torch.Tensor) or not isinstance(model, torch.Tensor):
        return value
    if value.shape != model.shape or value.layout is not torch.strided:
        return value
    if value.dtype == model.dtype and value.stride() == model.stride():
        return value
    return value.to(model.dtype) if is_expanded(model) else blank(model).copy_(value)


class Float64Runner:
    """Runner of single nodes of a program in float64; what they draw is what they drew first."""

    def __init__(self) -> None:
        self.fallbacks: dict[str, str] = {}
        """Op -> why it ran in its own dtype, on inputs rounded to it."""
        self._states: dict[fx.Node, TorchRandomState] = {}

    def note(self, node: fx.Node) -> None:
        """Save the generator state before the first run of ``node``."""
        if effects.of(node).random:
            self._states[node] = TorchRandomState()

    def again(self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value of ``node``, which draws the same numbers again."""
        target: Callable[..., Any] = node.target  # type: ignore[assignment]  # an op or a function
        states = self._states.get(node)
        with nullcontext() if states is None else states.again():
            return wait_for_collective(node, target(*args, **kwargs))

    def run(self, node: fx.Node, values: Values, native: Values) -> Any:
        """The value of ``node`` in float64 for ``values``; ``native`` have the program's dtypes.

        An op that draws does so in its own dtype, and so draws what it drew in the step. One
        without a kernel for float64 runs in its own dtype too; `fallbacks` has it.
        """
        target: Callable[..., Any] = node.target  # type: ignore[assignment]  # as above
        if target is _DROPOUT:
            return self._dropout(node, values, native)
        args, kwargs = arguments(node, values)
        if not effects.of(node).random and target not in _OF_BITS:
            try:
                given = {key: to_float64(value) for key, value in kwargs.items()}
                return to_float64(
                    wait_for_collective(node, target(*map(to_float64, args), **given))
                )
            except Exception as error:  # no kernel, or a check of dtypes in a user's own op
                why = f"{type(error).__name__}: {_first_line(error)}"
                self.fallbacks.setdefault(str(target), why)
        models, named = arguments(node, native)
        given = {key: like(value, named[key]) for key, value in kwargs.items()}
        return to_float64(self.again(node, list(map(like, args, models)), given))

    def _dropout(self, node: fx.Node, values: Values, native: Values) -> Any:
        """Dropout with a mask drawn in the program's dtype, and a product in float64."""
        _, mask = self.again(node, *arguments(node, native))
        value, probability, train = arguments(node, values)[0]
        if not train or not probability:
            return to_float64(value), mask
        scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
        return to_float64(value) * mask * scale, mask


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:120]
