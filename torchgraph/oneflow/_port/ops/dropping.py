"""Dropout as a function: an addend, a generator of its own."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ..errors import NotPorted


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    generator: Generator | None = None,
    *,
    addend: Tensor | None = None,
) -> Tensor:
    """OneFlow: ``nn.functional.dropout``; ``addend`` is added after it.

    Raises:
        NotPorted: in place. OneFlow writes over what a gradient may need; torch refuses to.
    """
    if inplace:
        raise NotPorted("dropout(inplace=True) is not here.", fix="use its result: x = dropout(x).")
    dropped = dropped_by(input, p, training, generator)
    return dropped if addend is None else dropped + addend


def dropped_by(x: Tensor, p: float, training: bool, generator: Generator | None) -> Tensor:
    """Dropout whose mask comes from a generator, or from torch's own."""
    if generator is None or not training or p == 0:
        return functional.dropout(x, p, training)
    kept = torch.empty_like(x).bernoulli_(1 - p, generator=generator)
    return x * kept if p == 1 else x * kept / (1 - p)
