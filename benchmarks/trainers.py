"""Steps in the loops of trainers: as they are, compiled by their own switch, with torchgraph.

    python -m benchmarks.trainers
    python -m benchmarks.trainers --only lightning,"transformers small" --budget 200

A row is a framework and a model. Each contender has a process of its own with empty caches, in
which the framework's loop runs; the loops take turns, each stopped where a step begins while the
others run. A step is all from one ``on_train_batch_start`` (``on_step_begin``) to the next: data,
forward, backward, clipping, update, logging. Seconds are told twice: on the wall, and of the
processor, from which other processes take nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from . import command, record
from .contenders import EAGER
from .start import AUTO
from .table import FIRST, break_even
from .table_child import Child, turns
from .timing import Spread
from .trainers_cases import ATEN, COMPILE, CONTENDERS, ROWS, Ended, ready

CLOCKS = ("wall", "cpu")
LOWEST = 0.97
"""The speed against eager under which a row is called slower."""


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    if args.child:
        answer(args.only[0], args.child, args.threads)
        return {}
    console = command.console()
    with command.threads(args.threads):
        head = record.result(
            "trainers",
            torch.device("cpu"),
            rounds=args.rounds,
            least_seconds_per_round=args.least,
            budget_seconds=args.budget,
            first_steps=FIRST,
            clocks="wall: perf_counter; cpu: process_time, all threads of the process",
            optimizer="AdamW, gradients clipped by their norm",
            quick=args.quick,
        )
        result: dict[str, Any] = {**head, "rows": []}
        console.print(record.heading(result), highlight=False)
        for name in [row for row in ROWS if not args.only or row.startswith(tuple(args.only))]:
            row = measure(name, args)
            result["rows"].append(row)
            console.print(_shown(row), highlight=False)
            if "contenders" in row:
                command.save(console, {**head, "rows": [row]}, args.out, "trainers", name)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.rounds(7)
    parser.threads(1)
    parser.only()
    parser.some("contenders", CONTENDERS, CONTENDERS)
    parser.add_argument(
        "--budget", type=float, default=300.0, help="seconds that a row's contenders may start in"
    )
    parser.add_argument(
        "--least", type=float, default=0.5, help="seconds of a round, by both clocks"
    )
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.read(argv)
    if args.quick:
        args.least, args.rounds, args.budget = 0.02, 1, min(args.budget, 60.0)
        args.contenders = [one for one in args.contenders if one != COMPILE]
    if args.contenders[0] != EAGER:
        parser.error(f"--contenders are {EAGER}, and then any of {', '.join(CONTENDERS)}")
    return args


def answer(row: str, contender: str, threads: int) -> None:
    """Train as the lines of stdin say; `benchmarks.trainers_cases` has the pace."""
    torch.set_num_threads(threads)
    framework, _, size = row.partition(" ")
    loop: Any = importlib.import_module(f"{__package__}.trainers_{framework}")
    with contextlib.suppress(Ended):
        loop.train(size, contender, ready)


# --- all contenders of a row ---------------------------------------------------------------------


def measure(row: str, args: argparse.Namespace) -> dict[str, Any]:
    """Start the contenders, let them take turns, and compare."""
    end, load = time.monotonic() + args.budget, os.getloadavg()[0]
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        children: dict[str, Child] = {}
        for contender in args.contenders:
            left = end - time.monotonic()
            if left <= 0:
                skipped[contender] = f"the row's {args.budget:.0f} s were over before it started"
                continue
            given = ["trainers", "--child", contender, "--only", row]
            given += ["--threads", str(args.threads)]
            child = stack.enter_context(Child(given, OMP_NUM_THREADS=str(args.threads)))
            try:
                child.started = child.hears(left)
            except RuntimeError as error:
                skipped[contender] = str(error)
                continue
            children[contender] = child
        if EAGER not in children:
            return {"name": row, "skipped": skipped}
        started = {name: child.started for name, child in children.items()}
        compare_states(started)
        told = turns(children, args.rounds, args.least, args.budget)
        calls = {name: child.asks("end", 60)["calls"] for name, child in children.items()}
    rounds = {
        name: {clock: Spread(tuple(one[clock] for one in found)) for clock in CLOCKS}
        for name, found in told.items()
    }
    return {
        "name": row,
        "parameters": started[EAGER]["parameters"],
        "load": {"before": load, "after": os.getloadavg()[0]},
        "contenders": [entry(name, started, rounds, calls[name]) for name in children],
        "skipped": skipped,
    }


def compare_states(started: dict[str, dict[str, Any]]) -> None:
    """After the first steps ours have eager's bits; compiled code is near to them."""
    eager = started[EAGER]
    for name, found in started.items():
        same = found["bits"] == eager["bits"]
        near = math.isclose(found["norm"], eager["norm"], rel_tol=1e-3)
        if not (same if name in (ATEN, AUTO) else near):
            raise SystemExit(f"{name}: other parameters than eager's; figures of it mean nothing.")


def entry(
    name: str,
    started: dict[str, dict[str, Any]],
    rounds: dict[str, dict[str, Spread]],
    calls: dict[str, Any] | None,
) -> dict[str, Any]:
    """A contender beside eager, by each clock."""
    found: dict[str, Any] = {"name": name, "calls": calls}
    for number, clock in enumerate(CLOCKS):
        ours, eager = rounds[name][clock], rounds[EAGER][clock]
        excess = started[name][clock] - started[EAGER][clock]
        even = None if name == EAGER else break_even(excess, ours.median, eager.median)
        found[clock] = {
            "first_step_seconds": started[name]["first"][number],
            "start_seconds": started[name][clock],
            "seconds_per_step": ours.as_json(),
            "steps_per_second": 1 / ours.median,
            "speed_against_eager": eager.median / ours.median,
            "break_even": even,
        }
    return found


# --- showing -------------------------------------------------------------------------------------


def _shown(row: dict[str, Any]) -> Table:
    lines = [f"{name}: skipped, {why}" for name, why in row["skipped"].items()]
    title = row["name"]
    if "parameters" in row:
        load = row["load"]
        title += f": {row['parameters']:,} parameters, "
        title += f"load {load['before']:.1f} to {load['after']:.1f}"
    table = Table(title=title, title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("first s", "steps/s", "ms", "cpu ms", "speed", "cpu", "even", "cpu"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in row.get("contenders", []):
        wall, cpu = one["wall"], one["cpu"]
        table.add_row(
            one["name"],
            f"{wall['first_step_seconds']:.2f}",
            f"{wall['steps_per_second']:.0f}",
            f"{1e3 * wall['seconds_per_step']['median']:.3f}",
            f"{1e3 * cpu['seconds_per_step']['median']:.3f}",
            *(f"{one[clock]['speed_against_eager']:.2f}x" for clock in CLOCKS),
            *(_even(one, clock) for clock in CLOCKS),
        )
        if one["name"] != EAGER and cpu["speed_against_eager"] < LOWEST:
            lines.append(f"{one['name']}: slower than eager by the processor's time")
    table.caption = "\n".join(lines)
    return table


def _even(one: dict[str, Any], clock: str) -> str:
    """From which step on no more time was taken than by eager."""
    if one["name"] == EAGER:
        return ""
    even = one[clock]["break_even"]
    return "never" if even is None else f"{even:,}"


if __name__ == "__main__":
    main()
