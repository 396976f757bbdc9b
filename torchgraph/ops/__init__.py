"""Ops of our own, as ``torch.ops.torchgraph.*``: schemas, fake kernels, references in ATen.

The compiled library puts faster kernels under the same schemas; without it everything works.
"""

from __future__ import annotations

from . import library as library
from . import norm as norm
from . import update as update
from .cross_entropy import cross_entropy
from .draws import bernoulli, grouped_mm, normal
from .marks import gradient

__all__ = ["bernoulli", "cross_entropy", "gradient", "grouped_mm", "normal"]
