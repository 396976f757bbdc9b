"""What the passes gain that wait for an option or an insert, and what delay_variables saves.

    python -m benchmarks.optional_passes
    python -m benchmarks.optional_passes --only mobilenet,table

One thread; contenders run in turns; counted is the thread's own processor time, so that other
processes do not enter. Memory is the peak of a process of its own, with the pass and without it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from . import command, memory, record
from .optional_cases import ROWS, Row, casts_first
from .timing import Clock, against_first, alternate

_STEPS = 5


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    if args.peak:
        print(_peak_bytes(delayed=args.peak == "delayed"))
        return None
    with command.threads(1):
        result = _run(args)
    console = command.shown(result, _table(result["rows"]))
    for name, found in result["peak_bytes"].items():
        console.print(f"peak, casts {name}: {found / 2**20:.0f} MiB", highlight=False)
    command.save(console, result, args.out, "optional_passes", *args.only)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.rounds(9)
    parser.only()
    parser.add_argument("--peak", choices=["first", "delayed"], help="the peak of this process")
    args = parser.read(argv)
    args.rows = [row for row in ROWS if not args.only or row.name.startswith(tuple(args.only))]
    if not args.rows:
        parser.error(f"no such row: {', '.join(args.only)}")
    if args.quick:
        args.rounds = min(args.rounds, 2)
    return args


def _run(args: argparse.Namespace) -> dict[str, Any]:
    least = 0.002 if args.quick else 0.2
    return {
        **record.result(
            "optional_passes",
            torch.device("cpu"),
            rounds=args.rounds,
            least_seconds_per_round=least,
            quick=args.quick,
        ),
        "rows": [_measure(row, args.rounds, least) for row in args.rows],
        "peak_bytes": {} if args.only else {n: _peak_of_child(n) for n in ("first", "delayed")},
    }


def _measure(row: Row, rounds: int, least_seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    calls = row.make()
    clock = Clock(torch.device("cpu"), time.thread_time)
    spreads = alternate(clock, list(calls.values()), rounds=rounds, least_seconds=least_seconds)
    contenders = against_first(list(calls), spreads)
    return {"name": row.name, "about": row.about, "contenders": contenders}


def _peak_of_child(name: str) -> int:
    return int(command.child("optional_passes", "--peak", name, timeout=600))


def _peak_bytes(*, delayed: bool) -> int:
    """Above what the process holds once the model is there and everything is compiled."""
    call = casts_first(delayed=delayed)
    before = memory.resident()
    for _ in range(_STEPS):
        call()
    memory.reset_peak()
    for _ in range(_STEPS):
        call()
    return memory.peak() - before


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    table.add_column("row")
    table.add_column("contender")
    for heading in ("ms", "middle half", "speed"):
        table.add_column(heading, justify="right")
    for row in rows:
        for index, entry in enumerate(row["contenders"]):
            table.add_row(
                "" if index else row["name"],
                entry["name"],
                f"{1e3 * entry['seconds']['median']:.3f}",
                "-".join(f"{1e3 * end:.3f}" for end in entry["seconds"]["quartiles"]),
                f"{entry['speed_against_first']:.2f}x",
            )
    return table


if __name__ == "__main__":
    main()
