"""How near the fixed cost model of `auto` is: seconds to compile and milliseconds a step.

    python -m benchmarks.switch
    python -m benchmarks.switch --models mlp,gpt --no-compile

For each model what `torchgraph.lower.cost` predicts from the program, and what is measured: the
quickest of many steps on `aten`, and a cold compilation. Both are seconds of one core, so that what
others do on the machine counts little: steps by one thread, the compiler with all its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table
from torch.optim import AdamW

from torchgraph.lower.cost import cost

from . import command, record
from .contenders import LR, TrainGraph, is_compiled
from .switch_cases import SWITCH_CASES

STEPS, SECONDS = 5, 2.0
"""At least so many steps are timed, and for so long."""
_MOST_CALLS = 10
"""Calls until compiled code serves: those before it are recorded."""
NEAR = 2.0
"""A prediction within this factor is good enough."""


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    torch.set_num_threads(1)
    if args.child:
        found = once(args.models[0], compiles=not args.no_compile)
        print(json.dumps(found))
        return found
    console = command.console()
    head = record.result("switch", torch.device("cpu"), quick=args.quick)
    result: dict[str, Any] = {**head, "models": []}
    console.print(record.heading(result), highlight=False)
    for name in args.models:
        result["models"].append(_child(name, args))
        console.print(_line(result["models"][-1]), style="dim", highlight=False)
    console.print(_table(result["models"]))
    chosen = [] if set(args.models) == set(SWITCH_CASES) else args.models
    command.save(console, result, args.out, "switch", *chosen)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.some("models", SWITCH_CASES, SWITCH_CASES)
    parser.add_argument("--no-compile", action="store_true", help="measure the steps only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.read(argv)
    args.no_compile |= args.quick
    return args


# --- measuring -----------------------------------------------------------------------------------


def once(name: str, *, compiles: bool) -> dict[str, Any]:
    """One model, in this process, which finds nothing compiled on disk."""
    work = SWITCH_CASES[name].on(torch.device("cpu"))
    graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR))
    graph(work.x, work.y)
    replay, _, _ = graph._runner.programs.last()
    found = cost(replay.program)
    steps: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(steps) < STEPS or time.perf_counter() < end:
        start = time.thread_time()
        graph(work.x, work.y)
        steps.append(time.thread_time() - start)
    start = time.perf_counter()
    if compiles:
        graph.config.set_backend("inductor")
        for _ in range(_MOST_CALLS):
            graph(work.x, work.y)
            if is_compiled(graph):
                break
        else:
            raise SystemExit(str(graph.report()))
    used = os.times()
    return {
        "name": name,
        "flops": found.flops,
        "bytes": found.bytes,
        "launches": found.launches,
        "switch_at": found.switch_at,
        "predicted_step": found.step_seconds,
        "predicted_compile": found.compile_seconds,
        "step": min(steps),
        "compile": used.children_user + used.children_system if compiles else None,
        "waited": time.perf_counter() - start if compiles else None,
    }


def _child(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """`once` in a new process, with caches of its own."""
    arguments = ["--child", "--models", name, *["--no-compile"] * args.no_compile]
    try:
        found: dict[str, Any] = command.child("switch", *arguments, timeout=900, fresh_caches=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{name}: {error.stderr.strip()}") from error
    return found


# --- showing -------------------------------------------------------------------------------------


def _line(one: dict[str, Any]) -> str:
    return f"{one['name']}: {one['flops']:,} FLOP, {one['bytes']:,} B, {one['launches']} launches"


def _table(models: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="predicted and measured", title_justify="left")
    table.add_column("model", no_wrap=True)
    for heading in ("compile s", "measured", "of it", "step ms", "measured", "of it", "switch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in models:
        table.add_row(
            one["name"],
            *_pair(one["predicted_compile"], one["compile"], 1.0, ".0f"),
            *_pair(one["predicted_step"], one["step"], 1e3, ".2f"),
            f"{one['switch_at']:,}",
        )
    return table


def _pair(predicted: float, measured: float | None, unit: float, form: str) -> tuple[str, ...]:
    shown = f"{unit * predicted:{form}}"
    if measured is None:
        return shown, "", ""
    ratio = predicted / measured
    verdict = "" if 1 / NEAR <= ratio <= NEAR else " MISS"
    return shown, f"{unit * measured:{form}}", f"{ratio:.2f}{verdict}"


if __name__ == "__main__":
    main()
