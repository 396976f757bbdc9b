"""The settings of LAMB and Lion that the tests go through, and gradients to step with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchgraph.optim import LAMB, Lion

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "LAMB": (LAMB, {"lr": 0.05}),
    "LAMB, decay": (LAMB, {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "LAMB, L2": (LAMB, {"lr": 0.05, "weight_decay": 0.1, "adam_w_mode": False}),
    "LAMB, OneFlow's ratio": (
        LAMB,
        {"lr": 0.05, "weight_decay": 0.1, "decay_in_trust_ratio": False},
    ),
    "LAMB, biased": (LAMB, {"lr": 0.05, "do_bias_correction": False, "eps": 1e-3}),
    "LAMB, maximize": (LAMB, {"lr": 0.02, "maximize": True, "weight_decay": 0.1}),
    "LAMB, foreach": (LAMB, {"lr": 0.05, "weight_decay": 0.1, "foreach": True}),
    "LAMB, all": (
        LAMB,
        {"lr": 0.02, "weight_decay": 0.1, "adam_w_mode": False, "maximize": True, "foreach": True},
    ),
    "Lion": (Lion, {"lr": 0.01}),
    "Lion, decay": (Lion, {"lr": 0.01, "weight_decay": 0.3, "betas": (0.95, 0.98)}),
    "Lion, maximize": (Lion, {"lr": 0.01, "maximize": True, "weight_decay": 0.1}),
    "Lion, foreach": (Lion, {"lr": 0.01, "weight_decay": 0.1, "foreach": True}),
    "Lion, all": (
        Lion,
        {"lr": 0.01, "weight_decay": 0.1, "maximize": True, "foreach": True},
    ),
}


def make(name: str) -> Any:
    """``make(name)(parameters)`` is the optimizer of that case."""
    kind, settings = CASES[name]
    return lambda parameters: kind(parameters, **settings)


def descend(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
) -> None:
    """One step for each list of gradients."""
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
