"""Milliseconds of one eager ``optimizer.step()``: LAMB and Lion beside torch's AdamW, on the CPU.

    python -m benchmarks.optimizers

Many small tensors, where the calls of ops take the time, and large ones, where memory does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.table import Table
from torch import nn

from torchgraph.optim import LAMB, Lion

from . import command, record
from .timing import Clock, Spread, alternate

BASE = "AdamW"
KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    BASE: torch.optim.AdamW,
    "LAMB": LAMB,
    "Lion": Lion,
}
SIZES = {"100 of 64": (100, 64), "150 of 166 667": (150, 166_667)}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    parser = command.CommandLine(__doc__)
    parser.rounds(15)
    parser.threads(1)
    args = parser.read(argv)
    with command.threads(args.threads):
        result = _run(args.rounds, args.quick)
    command.save(command.shown(result, _table(result)), result, args.out, "optimizers")
    return result


def _run(rounds: int, quick: bool) -> dict[str, Any]:
    device = torch.device("cpu")
    rounds = 2 if quick else rounds
    sizes: dict[str, Any] = {}
    for name, (count, size) in SIZES.items():
        count, size = (3, 8) if quick else (count, size)
        steps = {
            f"{kind}{', foreach' if foreach else ''}": _step(KINDS[kind], foreach, count, size)
            for kind in KINDS
            for foreach in (False, True)
        }
        spreads = alternate(
            Clock(device),
            list(steps.values()),
            rounds=rounds,
            least_seconds=1e-3 if quick else 0.2,
        )
        sizes[name] = _entries(dict(zip(steps, spreads, strict=True)))
    return {
        **record.result("optimizers", device, quick=quick, rounds=rounds, weight_decay=0.01),
        "sizes": sizes,
    }


def _step(
    kind: Callable[..., torch.optim.Optimizer], foreach: bool, count: int, size: int
) -> Callable[[], Any]:
    parameters = [nn.Parameter(torch.randn(size)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn(size)
    return kind(parameters, lr=1e-4, weight_decay=0.01, foreach=foreach).step


def _entries(spreads: dict[str, Spread]) -> dict[str, Any]:
    base = spreads[BASE].median
    return {
        name: {"seconds": spread.as_json(), "of_adamw": spread.median / base}
        for name, spread in spreads.items()
    }


def _table(result: dict[str, Any]) -> Table:
    table = Table(title="one step, median", title_justify="left")
    table.add_column("optimizer")
    for name in result["sizes"]:
        table.add_column(f"{name}, ms", justify="right")
        table.add_column(f"of {BASE}", justify="right")
    columns = result["sizes"].values()
    for name in next(iter(columns)):
        cells = [
            cell
            for column in columns
            for cell in (
                f"{1e3 * column[name]['seconds']['median']:.2f}",
                f"{column[name]['of_adamw']:.2f}",
            )
        ]
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    main()
