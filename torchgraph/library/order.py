"""``depend``: a wish about order, which a program without side effects cannot express otherwise."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import InvalidOption
from ..options.checking import checked
from .definition import define, differentiate


def _depend(x: Tensor, others: list[Tensor]) -> Tensor:
    return x.clone()


def _remember(ctx: Any, inputs: tuple[Tensor, list[Tensor]], output: Tensor) -> None:
    ctx.others = len(inputs[1])


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, list[None]]:
    return gradient, [None] * ctx.others


after = define("depend(Tensor x, Tensor[] others) -> Tensor", _depend, compiled=False)
"""A copy of ``x``, made after ``others``. The pass ``prune_depend`` makes plain order of it."""

differentiate(after, _backward, _remember)


@checked
def depend(x: Tensor, *others: Tensor) -> Tensor:
    """``x`` in a tensor of its own, whose readers run after what computes ``others``.

    In a Graph the passes keep that order, and no copy is made in the end. In eager mode, where
    everything runs in the order in which it is written, this is ``x.clone()``. Gradients flow to
    ``x`` alone. OneFlow: ``nn.functional.depend``.

    Args:
        x: a tensor of any shape and dtype.
        others: at least one tensor, of any shape, dtype and device.

    Raises:
        InvalidOption: for something that is no tensor, or without ``others``.
    """
    if not others:
        raise InvalidOption("depend(x, *others) takes at least one tensor that x shall come after.")
    result: Tensor = after(x, list(others))
    return result
