"""Ops replaced while recording, because the second trace would not do what eager does.

``native_batch_norm`` and the vendor forms write the running statistics without saying so; a
functional program would silently leave them behind. Each becomes the overload of the same kernel
that tells the truth.

``binary_cross_entropy_with_logits`` has another formula under ``torch.func.functionalize``, a bit
off eager's; it becomes the ops that its eager kernel calls.

``bernoulli_`` and ``normal_`` draw in an order that depends on strides, which their functional
forms do not keep. ``_grouped_mm`` has no fake kernel for most of what the CPU computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .. import ops
from .._torch import composite

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
    if running_mean is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    # Both pick the same vendor kernel by the same rule, and return the same reserve space.
    if not training:
        return aten._batch_norm_no_update.default(
            input, weight, bias, running_mean, running_var, momentum, eps
        )
    return aten._batch_norm_with_update.default(
        input, weight, bias, running_mean, running_var, momentum, eps
    )


def _bernoulli_(self: Any, p: float = 0.5, generator: Any = None) -> Any:
    if generator is not None or self.is_contiguous():
        return NotImplemented
    return self.copy_(ops.bernoulli(self, p))


def _normal_(self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or self.is_contiguous():
        return NotImplemented
    return self.copy_(ops.normal(self, mean, std))


def _grouped_mm(mat_a: Any, mat_b: Any, *rest: Any, **options: Any) -> Any:
    if mat_a.device.type != "cpu":
        return NotImplemented
    return ops.grouped_mm(mat_a, mat_b, *rest, **options)


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decomposition table of the first trace."""
    return {
        aten.native_batch_norm.default: _native_batch_norm,
        aten.cudnn_batch_norm.default: _cudnn_batch_norm,
        aten.bernoulli_.float: _bernoulli_,
        aten.normal_.default: _normal_,
        aten._grouped_mm.default: _grouped_mm,
        aten.binary_cross_entropy_with_logits.default: composite(
            aten.binary_cross_entropy_with_logits.default
        ),
    }
