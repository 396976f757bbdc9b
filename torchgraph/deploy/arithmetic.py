"""Arithmetic of Python's numbers, done with 0-dim tensors: float64 for a float, int64 for an int.

An optimizer computes with its learning rate in Python. Where there is no Python the same is done by
ops over tensors without dimensions, in the same precision.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..ir.values import kind

DTYPES: Mapping[type, torch.dtype] = {
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
}
"""What holds a number of each type."""


def dtype_of(number: object) -> torch.dtype | None:
    """The dtype that holds the number, which may be symbolic; None for all else."""
    return DTYPES.get(kind(number))


def function_of(target: object) -> Callable[..., torch.Tensor] | None:
    """The tensor function for ``target`` on numbers; None for none.

    At least one of its arguments is a tensor, the others may be numbers.
    """
    if target in _OPERATORS:
        return target  # type: ignore[return-value]  # an operator, which tensors have too
    name = getattr(target, "__name__", "").lstrip("_").removeprefix("sym_")
    return _FUNCTIONS.get(name)


def in_float64(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """``values`` whose integers are float64: what has a float for a result computes with floats."""
    return tuple(
        value.double()
        if isinstance(value, torch.Tensor) and value.dtype != torch.float64
        else value
        for value in values
    )


def _extreme(least: bool) -> Callable[[Any, Any], torch.Tensor]:
    whole = torch.minimum if least else torch.maximum
    bound = "max" if least else "min"

    def function(left: Any, right: Any) -> torch.Tensor:
        if not isinstance(left, torch.Tensor):
            left, right = right, left
        if isinstance(right, torch.Tensor):
            return whole(left, right)
        return torch.clamp(left, **{bound: right})

    return function


_OPERATORS = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
        *(operator.mod, operator.pow, operator.neg, operator.abs, operator.pos),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    }
)
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "float": torch.Tensor.double,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "cos": torch.cos,
    "sin": torch.sin,
    "tanh": torch.tanh,
    "log2": torch.log2,
    "not": torch.logical_not,
    "max": _extreme(least=False),
    "min": _extreme(least=True),
}
