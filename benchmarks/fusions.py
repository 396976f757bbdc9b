"""Microseconds of op chains, as captured, fused by ATen ops, and compiled by Inductor.

    python -m benchmarks.fusions
    python -m benchmarks.fusions --only attention,grouped --no-compile

Which fusions are worth a pass is decided here. The first contender of each row is what the ``aten``
program runs without the pass: in-place forms where lowering finds them. All contenders of a row
must give the first one's result, and run in turns. On the CPU one thread's processor time counts,
not what other processes take meanwhile; on CUDA the time until the device is done.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from torchgraph._torch import below_autograd

from . import command, record
from .fusion_cases import ROWS, Row
from .fusion_residual import INDUCTOR
from .timing import Clock, against_first, alternate


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    device = torch.device(args.device)
    console = command.console()
    with command.threads(1):
        result = _run(args, device, console)
    command.save(console, result, args.out, "fusions", device.type, *args.only)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.device()
    parser.only()
    parser.rounds(9)
    parser.add_argument("--no-compile", action="store_true", help="leave out Inductor")
    args = parser.read(argv)
    args.rows = [row for row in ROWS if not args.only or row.name.startswith(tuple(args.only))]
    if not args.rows:
        parser.error(f"no such row: {', '.join(args.only)}")
    if args.quick:
        args.rounds, args.no_compile = min(args.rounds, 2), True
    return args


def _run(args: argparse.Namespace, device: torch.device, console: Console) -> dict[str, Any]:
    result: dict[str, Any] = {
        **record.result(
            "fusions",
            device,
            rounds=args.rounds,
            least_seconds_per_round=0.002 if args.quick else 0.1,
            quick=args.quick,
        ),
        "rows": [],
    }
    console.print(record.heading(result), highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for row in progress.track(args.rows, description="fusions"):
            result["rows"].append(_measure(row, args, device, result["settings"]))
    console.print(_table(result["rows"]))
    return result


# --- measuring -----------------------------------------------------------------------------------


def _measure(
    row: Row, args: argparse.Namespace, device: torch.device, settings: dict[str, Any]
) -> dict[str, Any]:
    torch.manual_seed(0)
    # Below autograd, as programs run.
    with torch.no_grad(), contextlib.nullcontext() if row.whole else below_autograd():
        calls, skipped = _contenders(row, device, args.no_compile)
        _check(row, calls)
        now = time.thread_time if device.type == "cpu" else time.perf_counter
        spreads = alternate(
            Clock(device, now),
            list(calls.values()),
            rounds=args.rounds,
            least_seconds=settings["least_seconds_per_round"],
        )
    contenders = against_first(list(calls), spreads)
    return {"name": row.name, "about": row.about, "contenders": contenders, "skipped": skipped}


def _contenders(
    row: Row, device: torch.device, no_compile: bool
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    with torch.device(device):
        calls = row.make()
    compiled = calls.pop(INDUCTOR, None)
    if compiled is None:
        return calls, {}
    if no_compile:
        return calls, {INDUCTOR: "--no-compile"}
    torch.compiler.reset()  # rows share code objects; each is compiled for its own shape
    function = torch.compile(compiled, fullgraph=True, dynamic=False)
    try:
        function()
    except Exception as error:
        return calls, {INDUCTOR: f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
    return {**calls, INDUCTOR: function}, {}


def _check(row: Row, calls: dict[str, Callable[[], Any]]) -> None:
    """Figures of a wrong result mean nothing."""
    results = {name: _flat(call()) for name, call in calls.items()}
    name, expected = next(iter(results.items()))
    for other, got in results.items():
        for left, right in zip(expected, got, strict=True):
            close = torch.allclose(left.float(), right.float(), rtol=row.rtol, atol=row.rtol)
            if left.shape != right.shape or not close:
                gap = (left.float() - right.float()).abs().max().item()
                raise SystemExit(f"{row.name}: {other} differs from {name} by up to {gap:.3g}.")


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.clone()]  # a contender may write into what it returned
    return [leaf for item in value for leaf in _flat(item)]


# --- showing -------------------------------------------------------------------------------------


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(expand=False)
    table.add_column("contender", max_width=48)
    for heading in ("us", "min-max", "speed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_section()
        table.add_row(f"{row['name']}: {row['about']}", style="bold")
        for entry in row["contenders"]:
            spread = entry["seconds"]
            table.add_row(
                f"  {entry['name']}",
                f"{1e6 * spread['median']:,.1f}",
                f"{1e6 * spread['min']:,.1f}-{1e6 * spread['max']:,.1f}",
                f"{entry['speed_against_first']:.2f}x",
            )
        for name, why in row["skipped"].items():
            if why != "--no-compile":
                table.add_row(f"  {name}: {why}", style="dim")
    return table


if __name__ == "__main__":
    main()
