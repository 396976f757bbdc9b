"""Ops of our own, as ``torch.ops.torchgraph.*``: schemas, fake kernels, references in ATen.

The compiled library puts faster kernels under the same schemas; without it everything works.
"""

from __future__ import annotations

from . import library as library
from . import update as update
from .draws import bernoulli, grouped_mm, normal
from .marks import gradient
from .scale import cast_scale

__all__ = ["bernoulli", "cast_scale", "gradient", "grouped_mm", "normal"]
