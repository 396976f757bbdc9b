"""Results whose history ends where the step does: going backward into one is an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..errors import UnsupportedOutput

_TRAINED = torch.empty(0, requires_grad=True)


class _EndOfHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, trained: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: object, *gradients: object) -> object:
        raise UnsupportedOutput(
            "backward() goes into a tensor that a step of tg.step returned: a program keeps no "
            "history of what it computes.",
            fix="call backward() in that step, with all that adds to the loss; or detach() the "
            "result, or compute it under torch.no_grad().",
        )


_end: Any = _EndOfHistory.apply


def with_ends(tensors: Sequence[object], ended: Iterable[int]) -> list[object]:
    """The tensors, of which those at the positions ``ended`` require a gradient, as in eager.

    A ``backward()`` into one of these raises UnsupportedOutput: it would miss what the step did.
    """
    found = list(tensors)
    for position in ended:
        found[position] = _end(_TRAINED, found[position])
    return found
