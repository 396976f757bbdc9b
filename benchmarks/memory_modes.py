"""What each memory option saves and costs: planned and measured peak, time; on the CPU, under aten.

    python -m benchmarks.memory
    python -m benchmarks.memory --models gpt,bert --rounds 9

Each contender trains its own copy of a model of `benchmarks.step` with AdamW. Peaks are what a step
allocates at its most, states and arguments not counted; times alternate in one process. Options
that come to the same program share one time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.optim import AdamW

from torchgraph import GraphConfig

from . import command, record
from .cases import CASES
from .contenders import LR, TrainGraph
from .timing import Clock, alternate
from .work import Case

CPU = torch.device("cpu")
MODELS = ("mlp", "conv6", "mobilenet_v2", "gpt", "bert", "resnet18")
UNPLANNED = "unplanned"
MODES = ("Disable", "SpeedFirst", "MemoryFirst", "OverlapCpuGpu", "DelayShortGpu")
WANTED = 0.9
"""Of unplanned, on three models."""


def _both(config: GraphConfig) -> None:
    config.enable_straighten_algorithm("MemoryFirst")
    config.enable_compress_memory()


def all_options(config: GraphConfig) -> None:
    """The three options with which a step has the least memory."""
    _both(config)
    config.enable_choose_best_memory_allocation()


def _mode(mode: str) -> Callable[[GraphConfig], object]:
    return lambda config: config.enable_straighten_algorithm(mode)


CONTENDERS: dict[str, Callable[[GraphConfig], object]] = {
    UNPLANNED: lambda config: None,
    **{mode: _mode(mode) for mode in MODES},
    "best allocation": lambda config: config.enable_choose_best_memory_allocation(),
    "compress": lambda config: config.enable_compress_memory(),
    "MemoryFirst, compress": _both,
    "all three": all_options,
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    console = command.console()
    with command.threads(args.threads):
        result = _run(args, console)
    console.print(_verdict(result["models"]), highlight=False)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.some("models", MODELS, CASES)
    parser.rounds(5)
    parser.threads(1)
    args = parser.read(argv)
    if args.quick:
        args.rounds = min(args.rounds, 2)
    return args


def _run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    least = 0.01 if args.quick else 0.2
    head = record.result(
        "memory",
        CPU,
        rounds=args.rounds,
        least_seconds_per_round=least,
        quick=args.quick,
        optimizer="AdamW",
    )
    result: dict[str, Any] = {**head, "models": []}
    console.print(record.heading(result), highlight=False)
    for name in args.models:
        measured = _measure(CASES[name], args.rounds, least)
        result["models"].append(measured)
        console.print(_table(measured))
        command.save(console, {**head, "models": [measured]}, args.out, "memory", name)
    return result


def _measure(case: Case, rounds: int, least_seconds: float) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], Any]] = {}
    """Of each program, by its source."""
    sources: list[str] = []
    for name, configure in CONTENDERS.items():
        work = case.on(CPU)
        graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR))
        configure(graph.config)
        call = _call(graph, work.x, work.y)
        seconds = Clock(CPU).seconds(call)
        peaks = graph.report(memory=(work.x, work.y)).peaks
        assert peaks.measured is not None
        entries.append(
            {
                "name": name,
                "planned_bytes": peaks.planned,
                "measured_bytes": peaks.measured,
                "eager_bytes": peaks.eager,
                "method": peaks.method,
                "orders": [plan.order for plan in peaks.plans],
                "arena_bytes": sum(plan.arena.nbytes for plan in peaks.plans),
                "notes": list(peaks.notes),
                "first_step_seconds": seconds,
            }
        )
        sources.append(graph._runner.programs.last()[0].executable.source)
        calls.setdefault(sources[-1], call)
    # One thread: its own time, without what other processes take from it.
    clock = Clock(CPU, time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
    found = alternate(clock, list(calls.values()), rounds=rounds, least_seconds=least_seconds)
    spreads = dict(zip(calls, found, strict=True))
    base = entries[0]["measured_bytes"]
    for entry, source in zip(entries, sources, strict=True):
        spread = spreads[source]
        entry["of_unplanned"] = entry["measured_bytes"] / base
        entry["of_eager"] = entry["measured_bytes"] / entry["eager_bytes"]
        entry["of_planned"] = entry["measured_bytes"] / entry["planned_bytes"]
        entry["seconds_per_step"] = spread.as_json()
        entry["time_of_unplanned"] = spread.median / found[0].median
    return {"name": case.name, "about": case.about, "contenders": entries}


def _call(graph: TrainGraph, x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    return lambda: graph(x, y)


def _table(measured: dict[str, Any]) -> Table:
    title = f"{measured['name']}: {measured['about']}"
    table = Table(title=title, title_justify="left", caption_justify="left", box=None)
    table.add_column("option", no_wrap=True)
    for heading in ("planned MB", "measured MB", "of planned", "of unplanned", "of eager", "time"):
        table.add_column(heading, justify="right")
    for entry in measured["contenders"]:
        table.add_row(
            entry["name"],
            f"{entry['planned_bytes'] / 1e6:.3f}",
            f"{entry['measured_bytes'] / 1e6:.3f}",
            f"{entry['of_planned']:.3f}x",
            f"{entry['of_unplanned']:.3f}x",
            f"{entry['of_eager']:.3f}x",
            f"{entry['time_of_unplanned']:.2f}x",
        )
    notes = {entry["name"]: "; ".join(entry["notes"]) for entry in measured["contenders"]}
    table.caption = "\n".join(f"{name}: {note}" for name, note in notes.items() if note)
    return table


def _verdict(models: Sequence[dict[str, Any]]) -> str:
    best = {m["name"]: m["contenders"][-1]["of_unplanned"] for m in models}
    within = [
        abs(entry["of_planned"] - 1) <= 0.05 for model in models for entry in model["contenders"]
    ]
    small = sum(ratio <= WANTED for ratio in best.values())
    lines = [
        f"{'pass' if all(within) else 'MISS'}: measured within 5 % of planned",
        f"{'pass' if max(best.values()) <= 1 else 'MISS'}: all three at most 1.0x of unplanned",
        f"at most {WANTED}x: {small} of {len(best)} (wanted: three of the six): "
        + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in best.items()),
    ]
    return "\n".join(lines)
