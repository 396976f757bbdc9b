"""Optimizer rules: the multi-tensor op of each class, with its slots and settings by argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from ...._torch import OpOverload
from ....optimizers import LAMB, Lion
from .op import functional


@dataclass(frozen=True)
class UpdateRule:
    """The mapping from one optimizer class to a call of its multi-tensor op."""

    op: OpOverload
    """The functional form. Its lists: parameters, gradients, one for each slot, copies."""
    slots: tuple[str, ...]
    """Keys in the optimizer's state; one that an optimizer does not use is an empty list."""
    numbers: Mapping[str, tuple[str, ...]]
    """Argument of the op -> where it is in the param group: ``("betas", "0")``."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Argument of the op -> name in the param group, for settings that are no numbers."""
    constants: Mapping[str, bool] = field(default_factory=dict)
    """Arguments that are the same for every optimizer of the class."""
    exact: Literal["always", "fused", "never"] = "never"
    """When the op gives the optimizer's own bits: where it is ``fused=True``, or in any case."""

    def is_exact(self, held: Mapping[str, object]) -> bool:
        """True when the update of a param group with these settings stays bitwise equal."""
        return self.exact == "always" or (self.exact == "fused" and held.get("fused") is True)

    def settings(self, held: Mapping[str, object]) -> dict[str, bool]:
        """The op's flags and constants for a param group that holds these settings."""
        return {
            **{flag: bool(held.get(name, False)) for flag, name in self.flags.items()},
            **self.constants,
        }


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _numbers(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


_BETAS = {"beta1": ("betas", "0"), "beta2": ("betas", "1")}
_ADAM_NUMBERS = {**_numbers("lr", "eps", "weight_decay"), **_BETAS}
_ADAM_SLOTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")

RULES: dict[type, UpdateRule] = {
    torch.optim.Adam: UpdateRule(
        functional("adam"),
        _ADAM_SLOTS,
        _ADAM_NUMBERS,
        {**_same("amsgrad", "maximize"), "decoupled": "decoupled_weight_decay"},
        exact="fused",
    ),
    torch.optim.AdamW: UpdateRule(
        functional("adam"),
        _ADAM_SLOTS,
        _ADAM_NUMBERS,
        _same("amsgrad", "maximize"),
        {"decoupled": True},
        exact="fused",
    ),
    torch.optim.SGD: UpdateRule(
        functional("sgd"),
        ("momentum_buffer",),
        _numbers("lr", "momentum", "dampening", "weight_decay"),
        _same("nesterov", "maximize"),
        exact="fused",
    ),
    torch.optim.RMSprop: UpdateRule(
        functional("rmsprop"),
        ("square_avg", "grad_avg", "momentum_buffer", "step"),
        _numbers("lr", "alpha", "eps", "weight_decay", "momentum"),
        _same("centered", "maximize"),
    ),
    torch.optim.Adagrad: UpdateRule(
        functional("adagrad"),
        ("sum", "step"),
        _numbers("lr", "lr_decay", "eps", "weight_decay"),
        _same("maximize"),
        exact="fused",
    ),
    torch.optim.Adadelta: UpdateRule(
        functional("adadelta"),
        ("square_avg", "acc_delta", "step"),
        _numbers("lr", "rho", "eps", "weight_decay"),
        _same("maximize"),
    ),
    LAMB: UpdateRule(
        functional("lamb"),
        ("exp_avg", "exp_avg_sq", "step"),
        _ADAM_NUMBERS,
        {
            **_same("maximize", "decay_in_trust_ratio"),
            "decoupled": "adam_w_mode",
            "bias_correction": "do_bias_correction",
        },
    ),
    Lion: UpdateRule(
        functional("lion"),
        ("exp_avg",),
        {**_numbers("lr", "weight_decay"), **_BETAS},
        _same("maximize"),
    ),
}
"""By exact class: a subclass may step in another way."""
