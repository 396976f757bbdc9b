"""The forms of a batch norm in ATen: one computation, with other statistics, writes and kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from .._torch import OpOverload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True)
class BatchNorm:
    """One implementation of a batch norm with running statistics, in its forms."""

    eager: str
    """The op that eager calls, which writes the statistics without saying so."""
    writing: OpOverload
    """Trains, and writes the running statistics."""
    functional: OpOverload
    """Trains, and returns the new running statistics."""
    evaluating: OpOverload
    """Normalizes by the running statistics."""
    statistics: Mapping[int, int]
    """Result of the functional form -> the argument that the other writes it to."""


NATIVE = BatchNorm(
    "native_batch_norm",
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    {3: 3, 4: 4},
)
VENDOR = BatchNorm(
    "cudnn_batch_norm",
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
    aten._batch_norm_no_update.default,
    {4: 3, 5: 4},
)
WITHOUT_STATISTICS = aten._native_batch_norm_legit.no_stats
"""Trains, and keeps no running statistics."""

TRAINING = (NATIVE.functional, WITHOUT_STATISTICS, VENDOR.functional)
EVALUATING = (NATIVE.evaluating, VENDOR.evaluating)
BACKWARD = (aten.native_batch_norm_backward.default, aten.batch_norm_backward.default)


def names(ops: Iterable[OpOverload]) -> tuple[str, ...]:
    """``_batch_norm_no_update`` for aten._batch_norm_no_update.default."""
    return tuple(schema_of(op).name.removeprefix("aten::") for op in ops)


def is_batch_norm(target: object) -> bool:
    """True for each of them, backward ones and eager's too."""
    return isinstance(target, OpOverload) and "batch_norm" in schema_of(target).name
