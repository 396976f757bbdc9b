"""The gradient of a cross-entropy, some rows at a time, with the bits of ATen's two ops.

``nll_loss_backward`` gives a matrix of zeros but for one element a row, as large as the logits,
for ``_log_softmax_backward_data`` alone to read. Both work row by row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .definition import define

aten = torch.ops.aten

_BYTES = 2**20
"""Of the rows that are done together."""

_ARGUMENTS = (
    "Tensor target, Tensor? weight, int reduction, int ignore_index, Tensor total_weight, "
    "Tensor gradient"
)


def _write(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
    gradient: Tensor,
) -> Tensor:
    rows, classes = log_probabilities.shape
    step = max(1, _BYTES // max(1, classes * log_probabilities.itemsize))
    for start in range(0, rows, step):
        part = log_probabilities[start : start + step]
        own = gradient[start : start + step] if gradient.ndim else gradient
        labels = target[start : start + step]
        of_loss = aten.nll_loss_backward.default(
            own, part, labels, weight, reduction, ignore_index, total_weight
        )
        aten._log_softmax_backward_data.out(of_loss, part, 1, part.dtype, out=part)
    return log_probabilities


def _result(log_probabilities: Tensor, *others: Any) -> Tensor:
    return _write(log_probabilities.clone(), *others)


def _fake(log_probabilities: Tensor, *others: object) -> Tensor:
    return torch.empty_like(log_probabilities)


def _fake_write(log_probabilities: Tensor, *others: object) -> Tensor:
    return log_probabilities


nll_log_softmax_backward = define(
    f"nll_log_softmax_backward(Tensor log_probabilities, {_ARGUMENTS}) -> Tensor",
    _result,
    _fake,
    compiled=False,
)
"""The gradient of logits, from their log-softmax of two dimensions."""
define(
    f"nll_log_softmax_backward_(Tensor(a!) log_probabilities, {_ARGUMENTS}) -> Tensor(a!)",
    _write,
    _fake_write,
    compiled=False,
)
