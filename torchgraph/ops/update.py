"""Multi-tensor optimizer updates: schemas, argument checks, fake kernels.

One op per rule and two forms with equal arguments: ``adam_update_`` writes, ``adam_update`` returns
what the other would have written, list after list. The overload ``device`` takes each number as a
float64 tensor of no dimensions on the parameters' device, so that a replayed CUDA Graph sees a
learning rate move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._torch import OpOverload
from .library import define
from .update_reference import compute

_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_SCALARS = ("grad_scale", "clip_coef", "found_inf")


@dataclass(frozen=True)
class Rule:
    """What an optimizer rule keeps per parameter, and the numbers that it takes."""

    states: tuple[str, ...]
    """The state lists; torch.optim's names."""
    numbers: tuple[str, ...]
    flags: tuple[tuple[str, bool], ...] = ()
    optional: tuple[str, ...] = ()
    """The states that may be an empty list: what they are for is then left out."""
    steps: bool = True

    @property
    def lists(self) -> tuple[str, ...]:
        """All list arguments, in order."""
        return ("params", "grads", *self.states, *(("steps",) if self.steps else ()), "copies")

    def schema(self, name: str) -> str:
        """Of the writing op; ``name`` may end with an overload."""
        device = name.endswith(".device")
        letters = iter("abcdefgh")
        lists = [
            f"Tensor[] {each}" if each == "grads" else f"Tensor({next(letters)}!)[] {each}"
            for each in self.lists
        ]
        numbers = [f"{'Tensor' if device else 'float'} {number}" for number in self.numbers]
        flags = [f"bool {flag}={default}" for flag, default in (*self.flags, ("maximize", False))]
        l1 = "Tensor? l1=None" if device else "float l1=0.0"
        scalars = [f"Tensor? {scalar}=None" for scalar in _SCALARS]
        arguments = ", ".join([*lists, "*", *numbers, *flags, l1, *scalars])
        return f"{name}({arguments}) -> ()"


RULES = {
    "sgd": Rule(
        ("momentum_buffers",),
        ("lr", "weight_decay", "momentum", "dampening"),
        (("nesterov", False), ("is_first_step", False)),
        optional=("momentum_buffers",),
        steps=False,
    ),
    "adam": Rule(
        ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
        ("lr", "beta1", "beta2", "eps", "weight_decay"),
        (("decoupled", False), ("amsgrad", False)),
        optional=("max_exp_avg_sqs",),
    ),
    "rmsprop": Rule(
        ("square_avgs", "grad_avgs", "momentum_buffers"),
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        (("centered", False),),
        optional=("grad_avgs", "momentum_buffers"),
    ),
    "adagrad": Rule(("state_sums",), ("lr", "lr_decay", "eps", "weight_decay")),
    "adadelta": Rule(("square_avgs", "acc_deltas"), ("lr", "rho", "eps", "weight_decay")),
    "lamb": Rule(
        ("exp_avgs", "exp_avg_sqs"),
        ("lr", "beta1", "beta2", "eps", "weight_decay"),
        (("decoupled", True), ("bias_correction", True)),
    ),
    "lion": Rule(("exp_avgs",), ("lr", "beta1", "beta2", "weight_decay"), steps=False),
}


def check(name: str, rule: Rule, lists: Sequence[Sequence[Any]], options: dict[str, Any]) -> None:
    """Raise RuntimeError for arguments that do not belong together; nothing is written by then."""

    def require(fits: bool, message: str) -> None:
        if not fits:
            raise RuntimeError(f"torchgraph::{name}: {message}")

    given = dict(zip(rule.lists, lists, strict=True))
    params = given["params"]
    for flag, state in _NEEDED.get(name.partition(".")[0], ()):
        wanted = options[flag]
        if isinstance(wanted, (bool, float)):
            require(
                bool(given[state]) or not (wanted and params), f"{flag} needs the list {state}."
            )
    for each, tensors in given.items():
        optional = each == "copies" or each in rule.optional
        count = f"{len(params)} params, {len(tensors)} {each}."
        require(len(tensors) == len(params) or (optional and not tensors), count)
        for i, (param, tensor) in enumerate(zip(params, tensors, strict=bool(tensors))):
            _check_tensor(require, each, i, param, tensor)
    for scalar in (*_SCALARS, *rule.numbers, "l1"):
        value = options.get(scalar)
        if isinstance(value, torch.Tensor):
            number = scalar not in _SCALARS
            require(value.numel() == 1, f"{scalar} must have one element.")
            require(
                value.dtype == torch.float64 if number else value.dtype in _FLOATING,
                f"{scalar} has dtype {value.dtype}.",
            )
            require(
                not params or value.device == params[0].device,
                f"{scalar} is on {value.device}, the parameters are not.",
            )


_NEEDED = {
    "sgd_update_": (("momentum", "momentum_buffers"),),
    "adam_update_": (("amsgrad", "max_exp_avg_sqs"),),
    "rmsprop_update_": (("centered", "grad_avgs"), ("momentum", "momentum_buffers")),
}


def _check_tensor(
    require: Callable[[bool, str], None],
    each: str,
    i: int,
    param: torch.Tensor,
    tensor: torch.Tensor,
) -> None:
    what = f"{each}[{i}]"
    require(tensor.device == param.device, f"{what} is on {tensor.device}, not on {param.device}.")
    require(tensor.layout == torch.strided, f"{what} is not strided.")
    if each == "steps":
        fits = tensor.numel() == 1 and tensor.dtype in (torch.float32, torch.float64)
        require(fits, f"{what} must be one float32 or float64 number.")
        return
    require(
        tensor.shape == param.shape,
        f"{what} has shape {tuple(tensor.shape)}, not {tuple(param.shape)}.",
    )
    free = each in ("params", "grads", "copies")
    require(
        tensor.dtype in _FLOATING if free else tensor.dtype == param.dtype,
        f"{what} has dtype {tensor.dtype}.",
    )


def _written(rule: Rule, lists: Sequence[Sequence[Any]]) -> list[Any]:
    """The tensors that a call writes, list after list."""
    return [
        tensor
        for each, tensors in zip(rule.lists, lists, strict=True)
        if each != "grads"
        for tensor in tensors
    ]


def _define(rule_name: str, overload: str) -> tuple[OpOverload, OpOverload]:
    rule = RULES[rule_name]
    name = f"{rule_name}_update_{overload}"
    defaults: dict[str, Any] = dict.fromkeys(_SCALARS)
    defaults.update(rule.flags, maximize=False, l1=None if overload else 0.0)

    def writing(*lists: Any, **options: Any) -> None:
        options = {**defaults, **options}
        check(name, rule, lists, options)
        compute(rule_name, dict(zip(rule.lists, lists, strict=True)), options)

    def returning(*lists: Any, **options: Any) -> list[torch.Tensor]:
        check(name, rule, lists, {**defaults, **options})
        fresh = [
            tensors if each == "grads" else [tensor.clone() for tensor in tensors]
            for each, tensors in zip(rule.lists, lists, strict=True)
        ]
        op(*fresh, **options)
        return _written(rule, fresh)

    def fake(*lists: Any, **options: Any) -> None:
        check(name, rule, lists, {**defaults, **options})

    def fake_results(*lists: Any, **options: Any) -> list[torch.Tensor]:
        fake(*lists, **options)
        return [torch.empty_like(tensor) for tensor in _written(rule, lists)]

    op = define(rule.schema(name), writing, fake)
    schema = rule.schema(f"{rule_name}_update{overload}")
    for letter in "abcdefgh":
        schema = schema.replace(f"({letter}!)", "")
    schema = schema.replace("-> ()", "-> Tensor[]")
    return op, define(schema, returning, fake_results, compiled=False)


_OPS = {(name, overload): _define(name, overload) for name in RULES for overload in ("", ".device")}


def writing(rule: str, *, device: bool = False) -> OpOverload:
    """The op that updates in place; ``device``: with its numbers as tensors."""
    return _OPS[rule, ".device" if device else ""][0]


def functional(rule: str, *, device: bool = False) -> OpOverload:
    """The op that returns what the writing one writes."""
    return _OPS[rule, ".device" if device else ""][1]
