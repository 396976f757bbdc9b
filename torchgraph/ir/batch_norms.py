"""Batch norm ops of ATen, which differ in statistics, writes and kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from .._torch import OpOverload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True)
class BatchNorm:
    """An implementation of batch norm: its ops that write statistics, and that return them."""

    eager: OpOverload
    """The op that eager calls, which writes the running statistics without saying so."""
    writing: OpOverload
    """Trains, and writes the running statistics."""
    functional: OpOverload
    """Trains, and returns the new running statistics."""
    statistics: Mapping[int, int]
    """Result of the functional form -> the argument that the other writes it to."""


NATIVE = BatchNorm(
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit_functional.default,
    {3: 3, 4: 4},
)
VENDOR = BatchNorm(
    aten.cudnn_batch_norm.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
    {4: 3, 5: 4},
)
EVALUATING = aten._native_batch_norm_legit_no_training.default
"""Normalizes by the running statistics."""
WITHOUT_STATISTICS = aten._native_batch_norm_legit.no_stats
"""Trains, and keeps no running statistics."""

ANY_FLOAT = (NATIVE.functional, EVALUATING, WITHOUT_STATISTICS)
"""Those with kernels for each dtype. cuDNN's take no bfloat16, and what its forward pass keeps is
for a backward pass of the same dtype."""

# Where it writes nothing, what eager calls stands for itself: no other op runs that kernel
# without statistics, and _batch_norm_no_update runs none on CUDA.
FORWARD = (*ANY_FLOAT, VENDOR.functional, VENDOR.eager)
"""Forward ops that a functional program may have."""
BACKWARD = (aten.native_batch_norm_backward.default, aten.batch_norm_backward.default)


def evaluates(norm: fx.Node) -> bool:
    """True for a batch norm that normalizes by the running statistics."""
    if norm.target is VENDOR.eager:
        *_, training, _, _ = norm.args  # before the momentum and epsilon
        return not training
    return norm.target is EVALUATING


def names(ops: Iterable[OpOverload]) -> tuple[str, ...]:
    """``cudnn_batch_norm`` for aten.cudnn_batch_norm.default."""
    return tuple(schema_of(op).name.removeprefix("aten::") for op in ops)


def is_batch_norm(target: object) -> bool:
    """True for any op of batch norm, backward and eager ones included."""
    return isinstance(target, OpOverload) and "batch_norm" in schema_of(target).name
