"""What the calls before the first replay cost: is it linear in the step, and quick enough?

    python -m benchmarks.capture

Processor seconds of calls 1 to 3, with AdamW: the first makes its slots, is recorded and has a
program made of it, the second is recorded and confirms the program, the third replays; beside them
a step of eager. Medians over fresh Graphs. A line is fitted through what they take beyond three
steps of eager against recorded nodes, and, through the larger half of the sizes, a power: an
exponent of 1 is linear.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from rich.table import Table

from torchgraph.ir.each import expanded

from . import command, record
from .cases import CASES, dense, images, mlp, mobilenet
from .contenders import CONTENDERS, EAGER, TrainGraph, stage_seconds
from .timing import Clock, Spread
from .work import Case

FIRST = {"mlp 3": 0.15, "mobilenet_v2": 1.2, "gpt": 0.6, "mlp 1000": 12.0}
"""Seconds that the first call may take beyond a step of eager."""
SECOND = (3, 60e-6)
"""What the second may take: steps of eager, and seconds for each recorded op."""
FAMILIES = ("mlp", "mobilenet_v2", "gpt")
LINEAR = 1.15
"""The largest exponent that still counts as linear."""


class Fit(NamedTuple):
    """``seconds = start + per_node * nodes``, and the exponent of the best power of nodes."""

    start: float
    per_node: float
    exponent: float


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    with command.threads(args.threads):
        result = _run(args)
    console = command.shown(result, _table(result))
    for line in _verdicts(result):
        console.print(line, highlight=False)
    chosen = [] if set(args.models) == set(FAMILIES) else args.models
    command.save(console, result, args.out, "capture", *chosen)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.some("models", FAMILIES, FAMILIES)
    parser.rounds(3)
    parser.threads(None)
    args = parser.read(argv)
    if args.quick:
        args.rounds = 1
    return args


def _sizes(model: str, *, quick: bool) -> list[Case]:
    if model == "gpt":
        return [CASES["gpt"]]
    if model == "mlp":
        return [_mlp(count) for count in ([2, 3] if quick else [3, 16, 64, 250, 1000])]
    cut = [_mobilenet(count) for count in ([2, 4] if quick else [3, 6, 9, 12, 15])]
    return [*cut, CASES["mobilenet_v2"]]


def _mlp(layers: int) -> Case:
    return Case(f"mlp {layers}", "", lambda: dense(mlp(layers), batch=32, inputs=64))


def _mobilenet(features: int) -> Case:
    return Case(f"mobilenet {features}", "", lambda: images(mobilenet(features), batch=4))


def _run(args: argparse.Namespace) -> dict[str, Any]:
    families: dict[str, list[dict[str, Any]]] = {}
    first = _capture(_mlp(3), 1)
    for model in args.models:
        rows = families[model] = []
        for case in _sizes(model, quick=args.quick):
            rows.append(_capture(case, args.rounds))
    return {
        **record.result(
            "capture",
            torch.device("cpu"),
            rounds=args.rounds,
            quick=args.quick,
            optimizer="AdamW",
        ),
        "first_in_process_seconds": first["seconds"]["median"],
        "families": families,
        "fits": {m: fit(rows)._asdict() for m, rows in families.items() if len(rows) > 1},
    }


def _capture(case: Case, rounds: int) -> dict[str, Any]:
    calls: list[list[float]] = []
    eager: list[float] = []
    clock = Clock(torch.device("cpu"), time.process_time)
    for _ in range(rounds):
        work = case.on(torch.device("cpu"))
        step, _ = CONTENDERS[EAGER].make(work)
        step()
        eager.append(min(clock.seconds(step) for _ in range(3)))
        work = case.on(torch.device("cpu"))
        graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters()))
        gc.collect()
        call = functools.partial(graph, work.x, work.y)
        calls.append([clock.seconds(call) for _ in range(3)])
        replay = graph._runner.programs.last()[0]
    beyond = [sum(three) - 3 * alone for three, alone in zip(calls, eager, strict=True)]
    nodes = {
        "captured": expanded(replay.captured.program).count(),
        "optimised": replay.program.count(),
        "parameters": sum(1 for _ in work.model.parameters()),
    }
    return {
        "name": case.name,
        "nodes": nodes,
        "eager": Spread(tuple(eager)).as_json(),
        "seconds": Spread(tuple(beyond)).as_json(),
        "calls": [Spread(numbers).as_json() for numbers in zip(*calls, strict=True)],
        "stages": stage_seconds(graph),
    }


def fit(rows: Sequence[dict[str, Any]]) -> Fit:
    """Least squares over the sizes of one family; the power over the larger half of them.

    The small ones say nothing about growth: most of their seconds are what every capture costs.
    """
    nodes = [float(row["nodes"]["captured"]) for row in rows]
    seconds = [row["seconds"]["median"] for row in rows]
    slope, start = statistics.linear_regression(nodes, seconds)
    large = max(2, (len(rows) + 1) // 2)
    logs = [[math.log(number) for number in sample[-large:]] for sample in (nodes, seconds)]
    exponent, _ = statistics.linear_regression(*logs)
    return Fit(start, slope, exponent)


def _table(result: dict[str, Any]) -> Table:
    table = Table(title="processor seconds, AdamW", title_justify="left")
    table.add_column("model", no_wrap=True)
    headings = ("nodes", "eager", "call 1", "call 2", "call 3", "beyond", "ms/node")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for rows in result["families"].values():
        for row in rows:
            seconds = row["seconds"]
            table.add_row(
                row["name"],
                f"{row['nodes']['captured']:,}",
                f"{row['eager']['median']:.3f}",
                *(f"{spread['median']:.3f}" for spread in row["calls"]),
                f"{seconds['median']:.2f}",
                f"{1e3 * seconds['median'] / row['nodes']['captured']:.2f}",
            )
        table.add_section()
    return table


def _verdicts(result: dict[str, Any]) -> list[str]:
    lines = [f"the first three calls in the process (mlp 3) took "
             f"{result['first_in_process_seconds']:.2f} s"]  # fmt: skip
    for model, rows in result["families"].items():
        found = result["fits"].get(model)
        if found is not None:
            linear = "linear" if found["exponent"] <= LINEAR else "MISS: not linear"
            lines.append(
                f"{model}: {found['start']:.2f} s + {1e3 * found['per_node']:.2f} ms per node, "
                f"exponent {found['exponent']:.2f} ({linear})"
            )
        for row in rows:
            eager, (first, second, _) = row["eager"]["median"], row["calls"]
            if row["name"] in FIRST:
                beyond, most = first["median"] - eager, FIRST[row["name"]]
                lines.append(_judged(f"{row['name']}, call 1 beyond eager", beyond, most))
                steps, each = SECOND
                most = steps * eager + each * row["nodes"]["captured"]
                lines.append(_judged(f"{row['name']}, call 2", second["median"], most))
    return lines


def _judged(what: str, seconds: float, most: float) -> str:
    return f"{'pass' if seconds <= most else 'MISS'}: {what}: {seconds:.2f} s (at most {most:.2f})"


if __name__ == "__main__":
    main()
