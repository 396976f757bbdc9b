"""Microseconds that one call adds around the program: binding, guards, values, results.

    python -m benchmarks.call

For a model of 300 modules and 600 parameters with AdamW, calls of the Graph and of its bare
executable alternate, over the same live tensors and below autograd. The difference of a pair is
what a call adds, with every check on.

A second figure comes from inside the same call: its whole time less the time that the executable
ran. It is the larger one, for the checks fetch from memory what the program reads right after them.
The parts are timed alone, right after a program has run and filled the caches with its own tensors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from torchgraph._torch import below_autograd
from torchgraph.config import ambient
from torchgraph.replay.replay import Replay

from . import record
from .cases import Case, Work, dense
from .contenders import TrainGraph

MODULES = 300
WANTED = 200e-6


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
    passed = "pass" if result["adds"]["median"] <= WANTED else "MISS"
    console.print(
        f"{passed}: a call adds {1e6 * result['adds']['median']:.0f} us around the program "
        f"(wanted: at most {1e6 * WANTED:.0f} us)",
        highlight=False,
    )
    console.print(f"written to {record.save(result, args.out, 'call-cpu')}", soft_wrap=True)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=300, help="pairs of calls")
    parser.add_argument("--modules", type=int, default=MODULES, help="with two parameters each")
    parser.add_argument("--threads", type=int, default=1, help="ops this small gain from no second")
    parser.add_argument("--quick", action="store_true", help="does it run? figures mean nothing")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    if args.quick:
        args.calls, args.modules = min(args.calls, 10), min(args.modules, 10)
    return args


def _run(args: argparse.Namespace) -> dict[str, Any]:
    case = Case("stack", "linear layers in a row", lambda: stack(args.modules))
    work = case.on(torch.device("cpu"))
    graph = TrainGraph(work, torch.optim.AdamW(work.model.parameters(), lr=1e-3))
    start = time.perf_counter()
    graph(work.x, work.y)
    first = time.perf_counter() - start
    for _ in range(5):
        graph(work.x, work.y)
    replay: Replay = vars(graph)["_shown"][0]
    counts = {
        "modules": sum(1 for _ in work.model.modules()) - 1,
        "parameters": sum(1 for _ in work.model.parameters()),
        "nodes": replay.program.count(),
    }
    pairs = _pairs(graph, replay, work, args.calls)
    inside = _inside(graph, replay, work, args.calls)
    parts = {
        name: _alone(graph, work, part, args.calls) for name, part in _parts(graph, replay, work)
    }
    parts["guards, again at once"] = [_timed(replay.why_not) for _ in range(max(2, args.calls))]
    return {
        "benchmark": "call",
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        **record.surroundings(torch.device("cpu")),
        "settings": {"calls": args.calls, "quick": args.quick, "optimizer": "AdamW", **counts},
        "first_step_seconds": first,
        "call": _summary([whole for whole, _ in pairs]),
        "program": _summary([bare for _, bare in pairs]),
        "adds": _summary([whole - bare for whole, bare in pairs]),
        "adds_from_inside": _summary(inside),
        "parts": {name: _summary(sample) for name, sample in parts.items()},
    }


def stack(modules: int) -> Work:
    """Small linear layers, so that the program has many parameters and little to compute."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(modules)))
    return dense(model, batch=4, inputs=4, classes=4)


# --- measuring -----------------------------------------------------------------------------------


def _pairs(graph: TrainGraph, replay: Replay, work: Work, calls: int) -> list[tuple[float, float]]:
    """(a call of the Graph, a call of the executable), in turns; who is first changes each time."""
    function = replay.executable.function

    def whole() -> Any:
        return graph(work.x, work.y)

    found = []
    for number in range(calls):
        values = list(replay._values([work.x, work.y]))
        with torch.no_grad(), below_autograd():

            def bare(values: list[Any] = values) -> Any:
                return function(values)

            if number % 2:
                run = _timed(bare)
        call = _timed(whole)
        if not number % 2:
            with torch.no_grad(), below_autograd():
                run = _timed(bare)
        found.append((call, run))
    return found


def _inside(graph: TrainGraph, replay: Replay, work: Work, calls: int) -> list[float]:
    """Whole calls less the time that the executable ran inside of them."""
    executable = replay.executable
    ran: list[float] = []

    def timed(values: Sequence[Any]) -> tuple[Any, ...]:
        start = time.perf_counter()
        results = executable.function(values)
        ran.append(time.perf_counter() - start)
        return results

    replay.executable = replace(executable, function=timed)
    try:
        return [_timed(lambda: graph(work.x, work.y)) - ran[-1] for _ in range(calls)]
    finally:
        replay.executable = executable


def _parts(graph: TrainGraph, replay: Replay, work: Work) -> list[tuple[str, Callable[[], Any]]]:
    """The checks of a call, one by one."""
    inputs = vars(graph)["_inputs"]
    return [
        ("bind the arguments", lambda: inputs.bind((work.x, work.y), {})),
        ("ambient switches", ambient),
        ("guards", replay.why_not),
        ("no gradients left", lambda: replay.guards.check_gradients(replay.name_of)),
        ("gather the values", lambda: replay._values([work.x, work.y])),
    ]


def _alone(graph: TrainGraph, work: Work, part: Callable[[], Any], calls: int) -> list[float]:
    sample = []
    for _ in range(min(calls, 100)):
        graph(work.x, work.y)
        sample.append(_timed(part))
    return sample


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _summary(sample: list[float]) -> dict[str, Any]:
    quarters = statistics.quantiles(sample, n=4, method="inclusive")
    return {"median": quarters[1], "quartiles": [quarters[0], quarters[2]], "sample": sample}


def _table(result: dict[str, Any]) -> Table:
    settings = result["settings"]
    table = Table(
        title=f"{settings['modules']} modules, {settings['parameters']} parameters, AdamW, "
        f"{settings['nodes']} nodes",
        title_justify="left",
    )
    table.add_column("what")
    table.add_column("median us", justify="right")
    table.add_column("middle half", justify="right")
    rows = {
        "a call of the Graph": result["call"],
        "its program alone": result["program"],
        "a call adds": result["adds"],
        "  the same, from inside one call": result["adds_from_inside"],
        **{f"  {name}": sample for name, sample in result["parts"].items()},
    }
    for name, sample in rows.items():
        low, high = (1e6 * quarter for quarter in sample["quartiles"])
        table.add_row(
            name,
            f"{1e6 * sample['median']:,.0f}",
            f"{low:,.0f} - {high:,.0f}",
            style="bold" if name == "a call adds" else "",
        )
    return table


if __name__ == "__main__":
    main()
