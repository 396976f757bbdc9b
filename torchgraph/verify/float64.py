"""Ops in float64: their values as if nothing were rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ..ir import effects
from ..ir.ops import wait_for_collective
from ..live.random_state import TorchRandomState

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
    pairs = zip(model.shape, model.stride(), strict=True)
    if any(size > 1 and stride == 0 for size, stride in pairs):
        return value.to(model.dtype)
    made = torch.empty_strided(model.shape, model.stride(), dtype=model.dtype, device=value.device)
    return made.copy_(value)


class RngStates:
    """Generator states before each random node, so that it can draw the same numbers again."""

    def __init__(self) -> None:
        self._states: dict[fx.Node, TorchRandomState] = {}

    def note(self, node: fx.Node) -> None:
        """Save the generator state before the first run of ``node``."""
        if effects.of(node).random:
            self._states[node] = TorchRandomState()

    @contextmanager
    def again(self, node: fx.Node) -> Iterator[None]:
        """Let ``node`` draw the same numbers again in the block; then restore the generators."""
        if node not in self._states:
            yield
            return
        with TorchRandomState().kept():
            self._states[node].put_back()
            yield


class Float64Runner:
    """Runner of single nodes of a program in float64."""

    def __init__(self, draws: RngStates) -> None:
        self.fallbacks: dict[str, str] = {}
        """Op -> why it ran in its own dtype, on inputs rounded to it."""
        self._draws = draws

    def run(
        self,
        node: fx.Node,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        native_args: Sequence[Any],
        native_kwargs: Mapping[str, Any],
    ) -> Any:
        """The value of ``node`` for float64 ``args``; native ones have the program's dtypes.

        An op that draws does so in its own dtype, and so draws what it drew in the step. One
        without a kernel for float64 runs in its own dtype too; `fallbacks` has it.
        """
        target: Callable[..., Any] = node.target  # type: ignore[assignment]  # an op or a function
        if effects.of(node).random and target is not _DROPOUT:
            return to_float64(self._native(node, args, kwargs, native_args, native_kwargs))
        if target in _OF_BITS:
            return to_float64(self._native(node, args, kwargs, native_args, native_kwargs))
        if target is _DROPOUT:
            return self._dropout(node, args, native_args)
        try:
            given = {key: to_float64(value) for key, value in kwargs.items()}
            return to_float64(wait_for_collective(node, target(*map(to_float64, args), **given)))
        except Exception as error:  # no kernel, or a check of dtypes in a user's own op
            self.fallbacks.setdefault(str(target), f"{type(error).__name__}: {_first_line(error)}")
        return to_float64(self._native(node, args, kwargs, native_args, native_kwargs))

    def _native(
        self,
        node: fx.Node,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        native_args: Sequence[Any],
        native_kwargs: Mapping[str, Any],
    ) -> Any:
        given = [like(arg, model) for arg, model in zip(args, native_args, strict=True)]
        named = {key: like(value, native_kwargs[key]) for key, value in kwargs.items()}
        with self._draws.again(node):
            return wait_for_collective(node, node.target(*given, **named))  # type: ignore[operator]  # as above

    def _dropout(self, node: fx.Node, args: Sequence[Any], native_args: Sequence[Any]) -> Any:
        """Dropout with a mask drawn in the program's dtype, and a product in float64."""
        with self._draws.again(node):
            _, mask = _DROPOUT(*native_args)
        value, probability, train = args
        if not train or not probability:
            return to_float64(value), mask
        scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
        return to_float64(value) * mask * scale, mask


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:120]
