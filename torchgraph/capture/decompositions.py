"""Ops replaced while recording, because their schema hides a write.

``native_batch_norm`` and the vendor forms write the running statistics without saying so; a
functional program would silently leave them behind. Each becomes the overload of the same kernel
that tells the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten


def _native_batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if running_mean is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )
    return aten._native_batch_norm_legit.default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


def _cudnn_batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    # Picks the same vendor kernel by the same rule, and returns the same reserve space.
    return aten._batch_norm_with_update.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decomposition table of the first trace."""
    return {
        aten.native_batch_norm.default: _native_batch_norm,
        aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    }
