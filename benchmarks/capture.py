"""Seconds of a capture against the number of nodes: is it linear, and quick enough?

    python -m benchmarks.capture

Timed is what the first call does before its first step: both traces, the passes, the lowering. MLPs
from 2 to 64 layers and MobileNetV2 cut after some of its blocks, with AdamW; medians over fresh
Graphs. A line is fitted through seconds against recorded nodes, and, through the larger half of the
sizes, a power: an exponent of 1 is linear.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from torchgraph.replay.replay import Replay

from . import record
from .cases import CASES, dense, images, mlp, mobilenet
from .contenders import TrainGraph, stage_seconds
from .timing import Spread
from .work import Case

WANTED = {"mlp": 1.0, "mobilenet_v2": 6.0}
"""Seconds that the capture of these models may take."""
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
    threads = torch.get_num_threads()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    try:
        result = _run(args)
    finally:
        torch.set_num_threads(threads)
    console = Console()
    console.width = min(100, console.width) if console.is_terminal else 100
    console.print(record.heading(result), highlight=False)
    console.print(_table(result))
    for line in _verdicts(result):
        console.print(line, highlight=False)
    console.print(f"written to {record.save(result, args.out, 'capture-cpu')}", soft_wrap=True)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="mlp,mobilenet_v2", type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=3, help="captures of each size")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="does it run? figures mean nothing")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    unknown = set(args.models) - set(WANTED)
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(WANTED)}")
    if args.quick:
        args.rounds = 1
    return args


def _sizes(model: str, *, quick: bool) -> list[Case]:
    if model == "mlp":
        return [_mlp(count) for count in ([2, 3] if quick else [2, 3, 4, 8, 16, 32, 64])]
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
        "benchmark": "capture",
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        **record.surroundings(torch.device("cpu")),
        "settings": {"rounds": args.rounds, "quick": args.quick, "optimizer": "AdamW"},
        "first_in_process_seconds": first["seconds"]["median"],
        "families": families,
        "fits": {model: fit(rows)._asdict() for model, rows in families.items()},
    }


def _capture(case: Case, rounds: int) -> dict[str, Any]:
    stages: list[dict[str, float]] = []
    for _ in range(rounds):
        work = case.on(torch.device("cpu"))
        graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters()))
        gc.collect()
        graph(work.x, work.y)
        stages.append(stage_seconds(graph))
        replay: Replay = vars(graph)["_shown"][0]
        nodes = {
            "captured": replay.captured.program.count(),
            "optimised": replay.program.count(),
            "parameters": sum(1 for _ in work.model.parameters()),
        }
    totals = tuple(found["building graph"] + found["building plan"] for found in stages)
    return {
        "name": case.name,
        "nodes": nodes,
        "seconds": Spread(totals).as_json(),
        "stages": {name: statistics.median(found[name] for found in stages) for name in stages[0]},
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
    table = Table(title="capture, AdamW", title_justify="left")
    table.add_column("model", no_wrap=True)
    headings = (
        "nodes",
        "after passes",
        "seconds",
        "min-max",
        "ms/node",
        "trace",
        "passes",
        "lower",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for rows in result["families"].values():
        for row in rows:
            seconds, stages = row["seconds"], row["stages"]
            table.add_row(
                row["name"],
                f"{row['nodes']['captured']:,}",
                f"{row['nodes']['optimised']:,}",
                f"{seconds['median']:.2f}",
                f"{seconds['min']:.2f}-{seconds['max']:.2f}",
                f"{1e3 * seconds['median'] / row['nodes']['captured']:.2f}",
                f"{stages['building graph modules']:.2f}",
                f"{stages['building graph with compile passes']:.2f}",
                f"{stages['building plan']:.2f}",
            )
        table.add_section()
    return table


def _verdicts(result: dict[str, Any]) -> list[str]:
    lines = [
        f"the first capture in the process (mlp 3) took {result['first_in_process_seconds']:.2f} s"
    ]
    for model, rows in result["families"].items():
        found = result["fits"][model]
        linear = "linear" if found["exponent"] <= LINEAR else "MISS: not linear"
        lines.append(
            f"{model}: {found['start']:.2f} s + {1e3 * found['per_node']:.2f} ms per node, "
            f"exponent {found['exponent']:.2f} ({linear})"
        )
        name = "mlp 3" if model == "mlp" else model
        row = next((row for row in rows if row["name"] == name), None)
        if row is not None:
            seconds = row["seconds"]["median"]
            verdict = "pass" if seconds <= WANTED[model] else "MISS"
            lines.append(f"{verdict}: {name} in {seconds:.2f} s (wanted: {WANTED[model]:.0f} s)")
    return lines


if __name__ == "__main__":
    main()
