"""Ops of our own, as ``torch.ops.torchgraph.*``: schemas, fake kernels, references in ATen.

The compiled library puts faster kernels under the same schemas; without it everything works.

Touches: torch.library.
Never: a program, a fusion.
"""

from __future__ import annotations

from .draws import bernoulli, grouped_mm, normal, rnn_layer_without_grad
from .expect import ValueMoved, differs, expect, expect_none, expect_shape
from .losses import nll_log_softmax_backward
from .marks import accumulated, amp_black, amp_white, before_update, gradient
from .order import after, depend
from .quantiles import quantile, quantile_places
from .scaler import find_inf, keep, unscale, update_scale, update_scale_

__all__ = [
    "ValueMoved",
    "accumulated",
    "after",
    "amp_black",
    "amp_white",
    "before_update",
    "bernoulli",
    "depend",
    "differs",
    "expect",
    "expect_none",
    "expect_shape",
    "find_inf",
    "gradient",
    "grouped_mm",
    "keep",
    "nll_log_softmax_backward",
    "normal",
    "quantile",
    "quantile_places",
    "rnn_layer_without_grad",
    "unscale",
    "update_scale",
    "update_scale_",
]
