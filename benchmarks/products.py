"""The time of a compiled step's products alone: matrix products, convolutions, attention.

    python -m benchmarks.products
    python -m benchmarks.products --models bert_6x384

Each distinct product of a step is timed by itself, over values of its shapes and strides, as torch
calls it; the sum of all calls is set beside a step by compiled code, in the same process. The rest
is what loops, updates, random numbers, transfers and waiting threads take. A product that is quick
alone may be slower in a step, where others have filled the caches: it is a floor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.table import Table
from torch import fx
from torch.optim import AdamW

from torchgraph.costs.op_calls import op_calls

from . import command, record
from .cases import CASES, LARGE
from .contenders import LR, TrainGraph, is_compiled
from .timing import Clock, alternate
from .work import Case

_CPU = torch.device("cpu")
_WARM = 6
"""Calls until compiled code serves, and one more."""


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    parser = command.CommandLine(__doc__)
    parser.some("models", LARGE, CASES)
    parser.threads(2)
    parser.rounds(7)
    args = parser.read(argv)
    with command.threads(args.threads):
        head = record.result("products", _CPU, rounds=args.rounds, quick=args.quick)
        result = {**head, "models": [_measure(CASES[name], args) for name in args.models]}
    chosen = [] if set(args.models) == set(LARGE) else args.models
    shown = command.shown(result, _table(result["models"]))
    command.save(shown, result, args.out, "products", *chosen)
    return result


def _measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    work = case.on(_CPU, None)
    backend = "aten" if args.quick else "inductor"
    graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR), backend)
    graph.config.set_look_again("off")
    for _ in range(_WARM):
        graph(work.x, work.y)
    if not (args.quick or is_compiled(graph)):
        raise SystemExit(str(graph.report()))
    replay, _, _ = graph._runner.programs.last()
    found: dict[str, dict[str, Any]] = {}
    for call in op_calls(replay.aten_program):
        if call.flops and not call.is_view:
            entry = found.setdefault(_spelled(call.node), {"calls": 0, "flops": call.flops})
            entry["calls"] += call.rows
            entry.setdefault("call", _alone(call.node))
    kinds = list(found.values())
    clock = Clock(_CPU)
    steps: list[Callable[[], Any]] = [lambda: graph(work.x, work.y), *(k["call"] for k in kinds)]
    spreads = alternate(clock, steps, rounds=args.rounds, least_seconds=0.01)
    for entry, spread in zip(kinds, spreads[1:], strict=True):
        del entry["call"]
        entry["seconds"] = spread.as_json()
    products = sum(entry["calls"] * entry["seconds"]["median"] for entry in kinds)
    step = spreads[0]
    return {
        "name": case.name,
        "about": case.about,
        "step": step.as_json(),
        "products_seconds": products,
        "share": products / step.median,
        "flops": sum(entry["calls"] * entry["flops"] for entry in kinds),
        "products": found,
    }


def _alone(node: fx.Node) -> Callable[[], Any]:
    """A call of a node over random values; arguments that are no floats are zeros."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), _value)
    target: Any = node.target
    return lambda: target(*args, **kwargs)


def _value(source: fx.Node) -> Any:
    meta = source.meta["val"]
    if not isinstance(meta, torch.Tensor):
        return meta
    made = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype)
    return made.normal_() if meta.is_floating_point() else made.zero_()


def _spelled(node: fx.Node) -> str:
    """``mm (512, 384) (384, 1536)``, with strides where they are not those of rows."""
    values = [one.meta["val"] for one in node.all_input_nodes]
    shapes = [_layout(value) for value in values if isinstance(value, torch.Tensor)]
    return " ".join([str(node.target).partition(".")[2].partition(".")[0], *shapes])


def _layout(value: torch.Tensor) -> str:
    shape = ", ".join(map(str, value.shape))
    return f"({shape})" if value.is_contiguous() else f"({shape}; {tuple(value.stride())})"


def _table(models: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="products alone, of a compiled step", title_justify="left")
    table.add_column("model", no_wrap=True)
    for heading in ("step ms", "products ms", "share", "kinds", "GFLOP", "GFLOP/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in models:
        table.add_row(
            model["name"],
            f"{1e3 * model['step']['median']:.1f}",
            f"{1e3 * model['products_seconds']:.1f}",
            f"{model['share']:.2f}",
            str(len(model["products"])),
            f"{model['flops'] / 1e9:.1f}",
            f"{model['flops'] / 1e9 / model['products_seconds']:.0f}",
        )
    return table


if __name__ == "__main__":
    main()
