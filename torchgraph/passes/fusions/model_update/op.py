"""Multi-tensor optimizer updates: schemas, argument checks, fake kernels.

One op per rule and two forms with equal arguments: ``adam_update_`` writes, ``adam_update`` returns
what the other would have written, list after list. The overload ``device`` takes each number as a
float64 tensor of no dimensions on the parameters' device, so that a replayed CUDA Graph sees a
learning rate move.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...._torch import OpOverload
from ....library.definition import define
from .checks import SCALARS, UpdateOption, UpdateOptions, check, check_memory
from .reference import compute

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class UpdateArguments:
    """The per-parameter states and the numbers that an optimizer rule's op takes."""

    states: tuple[str, ...]
    """The state lists; torch.optim's names."""
    numbers: tuple[str, ...]
    flags: tuple[tuple[str, bool], ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    """(option, state): a list that may be empty where the option is off, or a number of 0."""
    steps: bool = True

    @property
    def optional(self) -> frozenset[str]:
        """The lists that may be empty."""
        return frozenset({"copies", *(state for _, state in self.needs)})

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of all list arguments, in order."""
        return ("params", "grads", *self.states, *(("steps",) if self.steps else ()), "copies")

    def schema(self, name: str) -> str:
        """The schema of the writing op; ``name`` may end with an overload."""
        device = name.endswith(".device")
        letters = iter("abcdefgh")
        lists = [
            f"Tensor[] {each}" if each == "grads" else f"Tensor({next(letters)}!)[] {each}"
            for each in self.lists
        ]
        numbers = [f"{'Tensor' if device else 'float'} {number}" for number in self.numbers]
        flags = [f"bool {flag}={default}" for flag, default in (*self.flags, ("maximize", False))]
        l1 = "Tensor? l1=None" if device else "float l1=0.0"
        scalars = [f"Tensor? {scalar}=None" for scalar in SCALARS]
        arguments = ", ".join([*lists, "*", *numbers, *flags, l1, *scalars])
        return f"{name}({arguments}) -> ()"


RULES = {
    "sgd": UpdateArguments(
        ("momentum_buffers",),
        ("lr", "weight_decay", "momentum", "dampening"),
        (("nesterov", False), ("is_first_step", False)),
        needs=(("momentum", "momentum_buffers"),),
        steps=False,
    ),
    "adam": UpdateArguments(
        ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
        ("lr", "beta1", "beta2", "eps", "weight_decay"),
        (("decoupled", False), ("amsgrad", False)),
        needs=(("amsgrad", "max_exp_avg_sqs"),),
    ),
    "rmsprop": UpdateArguments(
        ("square_avgs", "grad_avgs", "momentum_buffers"),
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        (("centered", False),),
        needs=(("centered", "grad_avgs"), ("momentum", "momentum_buffers")),
    ),
    "adagrad": UpdateArguments(("state_sums",), ("lr", "lr_decay", "eps", "weight_decay")),
    "adadelta": UpdateArguments(
        ("square_avgs", "acc_deltas"), ("lr", "rho", "eps", "weight_decay")
    ),
    "lamb": UpdateArguments(
        ("exp_avgs", "exp_avg_sqs"),
        ("lr", "beta1", "beta2", "eps", "weight_decay"),
        (("decoupled", True), ("bias_correction", True), ("decay_in_trust_ratio", True)),
    ),
    "lion": UpdateArguments(("exp_avgs",), ("lr", "beta1", "beta2", "weight_decay"), steps=False),
}


def _written(rule: UpdateArguments, lists: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """The tensors that a call writes, list after list."""
    return [
        tensor
        for each, tensors in zip(rule.lists, lists, strict=True)
        if each != "grads"
        for tensor in tensors
    ]


@dataclass(frozen=True)
class _Update:
    writing: OpOverload
    functional: OpOverload
    reference: Callable[..., None]


def _define(rule_name: str, overload: str) -> _Update:
    rule = RULES[rule_name]
    name = f"{rule_name}_update_{overload}"
    defaults: dict[str, UpdateOption] = dict.fromkeys(SCALARS)
    defaults.update(rule.flags, maximize=False, l1=None if overload else 0.0)

    def named(
        lists: Sequence[Tensors], options: UpdateOptions
    ) -> tuple[dict[str, Tensors], UpdateOptions]:
        given = dict(zip(rule.lists, lists, strict=True))
        options = {**defaults, **options}
        check(name, given, options, optional=rule.optional, needs=rule.needs)
        return given, options

    def writing(*lists: Tensors, **options: UpdateOption) -> None:
        given, every_option = named(lists, options)
        check_memory(name, given, every_option)
        compute(rule_name, given, every_option)

    def returning(*lists: Tensors, **options: UpdateOption) -> list[torch.Tensor]:
        named(lists, options)
        fresh = [
            tensors if each == "grads" else [tensor.clone() for tensor in tensors]
            for each, tensors in zip(rule.lists, lists, strict=True)
        ]
        op(*fresh, **options)
        return _written(rule, fresh)

    def fake(*lists: Tensors, **options: UpdateOption) -> None:
        named(lists, options)

    def fake_results(*lists: Tensors, **options: UpdateOption) -> list[torch.Tensor]:
        named(lists, options)
        return [torch.empty_like(tensor) for tensor in _written(rule, lists)]

    op = define(rule.schema(name), writing, fake)
    schema = re.sub(r"\(\w!\)", "", rule.schema(f"{rule_name}_update{overload}"))
    schema = schema.replace("-> ()", "-> Tensor[]")
    return _Update(op, define(schema, returning, fake_results, compiled=False), writing)


_OPS = {(name, overload): _define(name, overload) for name in RULES for overload in ("", ".device")}


def writing(rule: str, *, device: bool = False) -> OpOverload:
    """The op that updates in place; ``device``: with its numbers as tensors."""
    return _OPS[rule, ".device" if device else ""].writing


def functional(rule: str, *, device: bool = False) -> OpOverload:
    """The op that returns what the writing one writes."""
    return _OPS[rule, ".device" if device else ""].functional


def reference(rule: str, *, device: bool = False) -> Callable[..., None]:
    """The reference implementation of a writing op, for where there is no compiled kernel."""
    return _OPS[rule, ".device" if device else ""].reference
