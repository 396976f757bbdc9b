"""What the passes gain that wait for an option or an insert, and what delay_variables saves.

    python -m benchmarks.optional_passes
    python -m benchmarks.optional_passes --only mobilenet,table

One thread; contenders run in turns; counted is the thread's own processor time, so that other
processes do not enter. Memory is the peak of a process of its own, with the pass and without it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from . import memory, record
from .optional_cases import ROWS, Row, casts_first
from .timing import Clock, alternate

_STEPS = 5


def main(argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    if args.peak:
        print(_peak_bytes(delayed=args.peak == "delayed"))
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = _run(args)
    finally:
        torch.set_num_threads(threads)
    console = Console()
    console.width = min(100, console.width) if console.is_terminal else 100
    console.print(record.heading(result), highlight=False)
    console.print(_table(result["rows"]))
    for name, found in result["peak_bytes"].items():
        console.print(f"peak, casts {name}: {found / 2**20:.0f} MiB", highlight=False)
    saved = record.save(result, args.out, "optional-passes-cpu")
    console.print(f"written to {saved}", soft_wrap=True)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=[],
        help="rows whose name starts with one of these, comma-separated; no memory then",
    )
    parser.add_argument("--peak", choices=["first", "delayed"], help="the peak of this process")
    parser.add_argument("--quick", action="store_true", help="does it run? figures mean nothing")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    args.rows = [row for row in ROWS if not args.only or row.name.startswith(tuple(args.only))]
    if not args.rows:
        parser.error(f"no such row: {', '.join(args.only)}")
    if args.quick:
        args.rounds = min(args.rounds, 2)
    return args


def _run(args: argparse.Namespace) -> dict[str, Any]:
    least = 0.002 if args.quick else 0.2
    return {
        "benchmark": "optional_passes",
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        **record.surroundings(torch.device("cpu")),
        "settings": {
            "rounds": args.rounds,
            "least_seconds_per_round": least,
            "quick": args.quick,
        },
        "rows": [_measure(row, args.rounds, least) for row in args.rows],
        "peak_bytes": {} if args.only else {n: _peak_of_child(n) for n in ("first", "delayed")},
    }


def _measure(row: Row, rounds: int, least_seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    calls = row.make()
    clock = Clock(torch.device("cpu"), time.thread_time)
    spreads = alternate(clock, list(calls.values()), rounds=rounds, least_seconds=least_seconds)
    first = spreads[0].median
    return {
        "name": row.name,
        "about": row.about,
        "contenders": [
            {
                "name": name,
                "seconds": spread.as_json(),
                "speed_against_first": first / spread.median,
            }
            for name, spread in zip(calls, spreads, strict=True)
        ],
    }


def _peak_of_child(name: str) -> int:
    command = [sys.executable, "-m", "benchmarks.optional_passes", "--peak", name]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


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
    for heading in ("ms", "iqr", "speed"):
        table.add_column(heading, justify="right")
    for row in rows:
        for index, entry in enumerate(row["contenders"]):
            table.add_row(
                "" if index else row["name"],
                entry["name"],
                f"{1e3 * entry['seconds']['median']:.3f}",
                f"{1e3 * entry['seconds']['iqr']:.3f}",
                f"{entry['speed_against_first']:.2f}x",
            )
    return table


if __name__ == "__main__":
    main()
