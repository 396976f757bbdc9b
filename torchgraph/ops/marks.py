"""Ops that compute nothing: they say something about a value, to passes, and are then removed."""

from __future__ import annotations

import torch

from .library import define


def _same(tensor: torch.Tensor, parameter: str) -> torch.Tensor:
    return tensor.clone()


gradient = define("gradient(Tensor self, str parameter) -> Tensor", _same, compiled=False)
"""The gradient that an optimizer reads for the parameter of that fqn; a copy of ``self``."""

accumulated = define("accumulated(Tensor self, str parameter) -> Tensor", _same, compiled=False)
"""Where the gradients of the micro-batches come together: what is behind it runs once a step."""

before_update = define("before_update(Tensor self) -> Tensor", torch.clone, compiled=False)
"""What a state holds when the optimizers begin: what a skipped step leaves in it."""
