"""The update ops against what torch has for the same, in time.

    python -m benchmarks.ops
    python -m benchmarks.ops --threads 2 --rounds 9
    python -m benchmarks.ops --device cuda

Contenders alternate in one process, each on tensors of its own. `benchmarks.ops_cross_entropy` is
the same for softmax cross-entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn, optim

import torchgraph as tg
from torchgraph import _extension
from torchgraph.passes.fusions.model_update.op import writing

from . import command, record
from .timing import Clock, alternate

Call = Callable[[], Any]
LR, DECAY = 1e-3, 0.01
ADAM: dict[str, Any] = {"lr": LR, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": DECAY}


@dataclass(frozen=True)
class Row:
    """One comparison. ``make`` gives torch's call and ours for tensors of a size, on a device."""

    name: str
    make: Callable[[int, int, torch.device], tuple[Call, Call]]
    wanted: float | None = None
    """The share of torch's time that ours may take."""
    small: bool = False
    """100 tensors of 64 numbers instead of the large case."""


def lists(count: int, size: int, device: torch.device, states: int) -> list[list[Tensor]]:
    """Parameters, gradients and ``states`` lists of zeros, each of ``count`` tensors."""
    drawn = [[torch.randn(size, device=device) for _ in range(count)] for _ in range(2)]
    zeros = [[torch.zeros(size, device=device) for _ in range(count)] for _ in range(states)]
    return [*drawn, *zeros]


def steps(count: int, device: torch.device) -> list[Tensor]:
    """A step counter for each parameter."""
    return [torch.zeros((), device=device) for _ in range(count)]


def _torch_adamw(given: list[list[Tensor]], counters: list[Tensor]) -> None:
    params, grads, first, second = given
    for counter in counters:
        counter += 1
    torch._fused_adamw_(
        params, grads, first, second, [], counters, amsgrad=False, maximize=False, **ADAM
    )


def adamw(count: int, size: int, device: torch.device) -> tuple[Call, Call]:
    """torch's fused kernel, and ours."""
    theirs, ours = lists(count, size, device, 2), lists(count, size, device, 2)
    counters, own = steps(count, device), steps(count, device)
    op = writing("adam")
    return (
        lambda: _torch_adamw(theirs, counters),
        lambda: op(*ours, [], own, [], decoupled=True, **ADAM),
    )


def adamw_with_all(count: int, size: int, device: torch.device) -> tuple[Call, Call]:
    """Unscale, clip, update and cast: torch's four calls, and ours."""
    theirs, ours = lists(count, size, device, 2), lists(count, size, device, 2)
    counters, own = steps(count, device), steps(count, device)
    copies = [[p.bfloat16() for p in given[0]] for given in (theirs, ours)]
    factor = torch.full((), 1 + 2.0**-20, device=device)  # a factor of 1 would be left out
    found = torch.zeros((), device=device)
    op = writing("adam")

    def separate() -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(theirs[1], found, factor)
        torch._foreach_mul_(theirs[1], factor)
        _torch_adamw(theirs, counters)
        torch._foreach_copy_(copies[0], theirs[0])

    def together() -> None:
        scalars = {"grad_scale": factor, "clip_coef": factor, "found_inf": found}
        op(*ours, [], own, copies[1], decoupled=True, **ADAM, **scalars)

    return separate, together


def against_optimizer(
    make: Callable[[list[nn.Parameter]], optim.Optimizer],
    rule: str,
    states: int,
    *,
    counted: bool = True,
    unused: int = 0,
    **numbers: Any,
) -> Callable[[int, int, torch.device], tuple[Call, Call]]:
    """``optimizer.step()``, and our op for the same rule."""

    def make_calls(count: int, size: int, device: torch.device) -> tuple[Call, Call]:
        params, grads, *slots = lists(count, size, device, states)
        parameters = [nn.Parameter(p.clone()) for p in params]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad.clone()
        optimizer = make(parameters)
        own = [steps(count, device)] if counted else []
        op, empty = writing(rule), [list[Tensor]() for _ in range(unused)]
        return optimizer.step, lambda: op(params, grads, *slots, *empty, *own, [], **numbers)

    return make_calls


_COMMON: dict[str, Any] = {"lr": LR, "eps": 1e-8, "weight_decay": DECAY}
_FUSED: dict[str, Any] = {"lr": LR, "weight_decay": DECAY, "fused": True}
_FOREACH: dict[str, Any] = {"lr": LR, "weight_decay": DECAY, "foreach": True}


def _adagrad(parameters: list[nn.Parameter]) -> optim.Optimizer:
    """Fused on the CPU alone: for a GPU torch has no such kernel."""
    return optim.Adagrad(parameters, **(_FUSED if parameters[0].is_cpu else _FOREACH))


ROWS = (
    Row("AdamW", adamw, 1.02),
    Row("AdamW, scale, clip, bf16 copy", adamw_with_all, 0.70),
    Row(
        "AdamW step, small",
        against_optimizer(
            lambda p: optim.AdamW(p, **_FUSED), "adam", 2, unused=1, decoupled=True, **ADAM
        ),
        0.25,
        small=True,
    ),
    Row(
        "SGD, momentum",
        against_optimizer(
            lambda p: optim.SGD(p, momentum=0.9, **_FUSED),
            "sgd",
            1,
            counted=False,
            lr=LR,
            weight_decay=DECAY,
            momentum=0.9,
            dampening=0.0,
        ),
        1.02,
    ),
    Row(
        "RMSprop",
        against_optimizer(
            lambda p: optim.RMSprop(p, **_FOREACH),
            "rmsprop",
            1,
            unused=2,
            alpha=0.99,
            momentum=0.0,
            **_COMMON,
        ),
        1.0,
    ),
    Row(
        "Adagrad",
        against_optimizer(_adagrad, "adagrad", 1, lr_decay=0.0, **_COMMON),
        1.02,
    ),
    Row(
        "Adadelta",
        against_optimizer(
            lambda p: optim.Adadelta(p, **_FOREACH), "adadelta", 2, rho=0.9, **_COMMON
        ),
        1.0,
    ),
    Row(
        "LAMB",
        against_optimizer(lambda p: tg.optim.LAMB(p, lr=LR, weight_decay=DECAY), "lamb", 2, **ADAM),
        1.0,
    ),
    Row(
        "Lion",
        against_optimizer(
            lambda p: tg.optim.Lion(p, lr=LR, weight_decay=DECAY),
            "lion",
            1,
            counted=False,
            lr=LR,
            beta1=0.9,
            beta2=0.99,
            weight_decay=DECAY,
        ),
        1.0,
    ),
)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    parser = command.CommandLine(__doc__)
    parser.device()
    parser.rounds(9)
    parser.threads(1)
    args = parser.read(argv)
    with command.threads(args.threads):
        result = _run(args, torch.device(args.device))
    command.save(command.shown(result, _table(result)), result, args.out, "ops", args.device)
    return result


def _run(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    large = (150, 166_667) if device.type == "cpu" else (150, 826_667)  # 25 and 124 million
    result: dict[str, Any] = {
        **record.result("ops", device, quick=args.quick, rounds=args.rounds),
        "compiled": _extension.load(device.type),
        "rows": [],
    }
    for row in ROWS:
        count, size = (3, 8) if args.quick else (100, 64) if row.small else large
        spreads = alternate(
            Clock(device),
            row.make(count, size, device),
            rounds=2 if args.quick else args.rounds,
            least_seconds=1e-3 if args.quick else 0.2,
        )
        torchs, ours = spreads
        entry = {
            "name": row.name,
            "tensors": f"{count} of {size}",
            "torch": torchs.as_json(),
            "ours": ours.as_json(),
            "share": ours.median / torchs.median,
            "wanted": row.wanted,
        }
        result["rows"].append(entry)
    return result


def _table(result: dict[str, Any]) -> Table:
    table = Table(title="one call, median over the rounds", title_justify="left")
    for column in ("op", "tensors", "torch, ms", "ours, ms", "share", "wanted", ""):
        table.add_column(column, justify="left" if column in ("op", "tensors") else "right")
    for row in result["rows"]:
        met = row["wanted"] is None or row["share"] <= row["wanted"]
        table.add_row(
            row["name"],
            row["tensors"],
            f"{1e3 * row['torch']['median']:.3f}",
            f"{1e3 * row['ours']['median']:.3f}",
            f"{row['share']:.2f}",
            f"{row['wanted']:.2f}" if row["wanted"] else "",
            "met" if met else "MISS",
        )
    return table


if __name__ == "__main__":
    main()
