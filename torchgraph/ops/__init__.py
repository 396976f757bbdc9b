"""Ops of our own, as ``torch.ops.torchgraph.*``: schemas, fake kernels, references in ATen.

The compiled library puts faster kernels under the same schemas; without it everything works.
"""

from __future__ import annotations

from . import bce as bce, library as library, norm as norm, update as update
from .cross_entropy import cross_entropy
from .draws import bernoulli, grouped_mm, normal, rnn_layer_without_grad
from .expect import ValueMoved, differs, expect, expect_none, expect_shape
from .grad_stats import clip_coefficient, grad_stats
from .marks import accumulated, amp_black, amp_white, before_update, gradient
from .order import after, depend
from .scale import cast_scale
from .scaler import find_inf, keep, unscale, update_scale, update_scale_

__all__ = [
    "ValueMoved",
    "accumulated",
    "after",
    "amp_black",
    "amp_white",
    "before_update",
    "bernoulli",
    "cast_scale",
    "clip_coefficient",
    "cross_entropy",
    "depend",
    "differs",
    "expect",
    "expect_none",
    "expect_shape",
    "find_inf",
    "grad_stats",
    "gradient",
    "grouped_mm",
    "keep",
    "normal",
    "rnn_layer_without_grad",
    "unscale",
    "update_scale",
    "update_scale_",
]
