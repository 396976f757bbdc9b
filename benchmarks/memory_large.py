"""Peak memory of a step of the four large models, above what lies there before it, on the CPU.

    python -m benchmarks.memory_large
    python -m benchmarks.memory_large --models gpt2_6x384 --steps 5

Each contender in a process of its own (`benchmarks.memory`). The ratio is that to the best of
PyTorch: eager, eager with a fused optimizer, `torch.compile` with one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from . import command, memory, record
from .cases import CASES, LARGE
from .contenders import EAGER

_CPU = torch.device("cpu")
PYTORCH = (EAGER, "eager fused", "compile fused")
OURS = ("torchgraph inductor", "torchgraph aten", memory.MEMORY_OPTIONS)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    parser = command.CommandLine(__doc__)
    parser.some("models", LARGE, CASES)
    parser.some("contenders", (*PYTORCH, *OURS), (*PYTORCH, *OURS))
    parser.threads(2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds, of each process")
    args = parser.read(argv)
    if args.quick:
        args.contenders = [name for name in args.contenders if "eager" in name or "aten" in name]
    with command.threads(args.threads):
        head = record.result("memory_large", _CPU, steps=args.steps, quick=args.quick)
    result = {**head, "models": [_measure(name, args) for name in args.models]}
    command.save(command.shown(result, _table(result)), result, args.out, "memory_large")
    return result


def _measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {
        name: memory.of_child(
            model,
            name,
            _CPU,
            threads=args.threads,
            steps=args.steps,
            timeout=args.timeout,
        )
        for name in args.contenders
    }
    figures = {
        "of_best": _step_bytes,
        "of_best_at_most": _most_bytes,
        "of_best_with_states": _all_bytes,
    }
    for key, figure in figures.items():
        best = min(filter(None, (figure(found.get(name, {})) for name in PYTORCH)), default=None)
        for entry in found.values():
            size = figure(entry)
            entry[key] = size / best if size and best else None
    return {"name": model, "about": CASES[model].about, "contenders": found}


def _step_bytes(entry: dict[str, Any]) -> int | None:
    found: int | None = entry.get("step", {}).get("median_bytes")
    return found


def _most_bytes(entry: dict[str, Any]) -> int | None:
    found: int | None = entry.get("step", {}).get("bytes")
    return found


def _all_bytes(entry: dict[str, Any]) -> int | None:
    found: int | None = entry.get("bytes")
    return found


def _table(result: dict[str, Any]) -> Table:
    table = Table(box=None)
    for heading in ("model", "contender"):
        table.add_column(heading, no_wrap=True)
    for heading in ("step, MB", "of best", "at most, MB", "of best", "with states, MB", "of best"):
        table.add_column(heading, justify="right")
    for model in result["models"]:
        for name, entry in model["contenders"].items():
            cells = [
                _megabytes(_step_bytes(entry)),
                _ratio(entry["of_best"]),
                _megabytes(_most_bytes(entry)),
                _ratio(entry["of_best_at_most"]),
                _megabytes(_all_bytes(entry)),
                _ratio(entry["of_best_with_states"]),
            ]
            table.add_row(model["name"], name, *cells)
    return table


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


if __name__ == "__main__":
    main()
