"""Ops that compute nothing: they say something about a value, to passes, and are then removed."""

from __future__ import annotations

import torch

from .definition import define, differentiate


def _same(tensor: torch.Tensor, parameter: str) -> torch.Tensor:
    return tensor.clone()


gradient = define("gradient(Tensor self, str parameter) -> Tensor", _same, compiled=False)
"""The gradient that an optimizer reads for the parameter of that fqn; a copy of ``self``."""

accumulated = define("accumulated(Tensor self, str parameter) -> Tensor", _same, compiled=False)
"""The mark at which gradients of micro-batches accumulate: nodes behind it run once a step."""

before_update = define("before_update(Tensor self) -> Tensor", torch.clone, compiled=False)
"""The mark of a state's value before the optimizers: the value that a skipped step keeps."""

amp_white = define("amp_white(Tensor self) -> Tensor", torch.clone, compiled=False)
"""A copy of ``self``, in half precision under OneFlow's colouring; so is its gradient."""

amp_black = define("amp_black(Tensor self) -> Tensor", torch.clone, compiled=False)
"""A copy of ``self``, in float32 under OneFlow's colouring; so is its gradient."""


def _nothing_to_keep(ctx: object, inputs: object, output: object) -> None:
    pass


differentiate(amp_white, lambda ctx, gradient: amp_white(gradient), _nothing_to_keep)
differentiate(amp_black, lambda ctx, gradient: amp_black(gradient), _nothing_to_keep)
