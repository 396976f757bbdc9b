"""What the start costs: the first N steps of the default backend beside eager's and compile's.

    python -m benchmarks.start
    python -m benchmarks.start --models gpt --rounds 3

Each figure is of a process of its own, with empty caches, that has trained nothing before;
contenders alternate, medians over the rounds. The first step counts, the import of torch does not.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table
from torch.optim import AdamW

from . import command, record
from .cases import CASES
from .contenders import CONTENDERS, EAGER, LR, Step, TrainGraph
from .timing import Spread
from .work import Work

COMPILE, AUTO = "compile fused", "torchgraph auto"
"""torch.compile of the loss, with the fused optimizer; and a Graph as it comes."""
STARTS = (EAGER, COMPILE, AUTO)
STEPS = (1, 2, 3, 4, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
SHOWN = (1, 2, 3, 50, 500, 1000, 5000)
MORE_THAN_EAGER = {"mlp": 0.3}
"""Seconds that 50 steps may take more than eager's; 1.5 for the models that are not named."""
OF_EAGER = {"mlp": {5000: 1.0}}
"""Steps -> what they may take of eager's; for the models that are not named, `_OF_EAGER`."""
_OF_EAGER = {500: 1.1, 1000: 1.0}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    if args.child:
        found = once(args.models[0], args.child, args.threads, args.steps)
        print(json.dumps(found))
        return found
    console = command.console()
    head = record.result("start", torch.device("cpu"), rounds=args.rounds, quick=args.quick)
    result: dict[str, Any] = {**head, "models": []}
    console.print(record.heading(result), highlight=False)
    for name in args.models:
        measured = _measure(name, args)
        result["models"].append(measured)
        console.print(_table(measured))
        console.print("\n".join(measured["verdicts"]), highlight=False)
        command.save(console, {**head, "models": [measured]}, args.out, "start", name)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.some("models", ["mlp", "gpt", "resnet18", "lstm", "mobilenet_v2"], CASES)
    parser.rounds(3)
    parser.threads(torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=None, help="5000 of the MLP, else 1000")
    parser.add_argument("--child", choices=STARTS, help=argparse.SUPPRESS)
    args = parser.read(argv)
    if args.quick:
        args.rounds, args.steps = 1, 10
    return args


def once(model: str, contender: str, threads: int, steps: int) -> dict[str, Any]:
    """The first loss, and the seconds that the first N steps take, for each N of `STEPS`."""
    torch.set_num_threads(threads)
    work = CASES[model].on(torch.device("cpu"))
    step, _ = auto(work) if contender == AUTO else CONTENDERS[contender].make(work)
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    for number in range(1, steps + 1):
        loss = step()
        if number == 1:
            first = loss.item()
        if number in STEPS:
            seconds[str(number)] = time.perf_counter() - start
    return {"loss": first, "seconds": seconds}


def auto(work: Work) -> tuple[Step, TrainGraph]:
    """A Graph as it comes: it switches at the call that it computes."""
    graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR), "auto")
    return lambda: graph(work.x, work.y), graph


# --- measuring -----------------------------------------------------------------------------------


def _measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    steps = args.steps or (5000 if model == "mlp" else 1000)
    found: dict[str, list[dict[str, Any]]] = {start: [] for start in STARTS}
    for number in range(args.rounds):
        for offset in range(len(STARTS)):
            start = STARTS[(number + offset) % len(STARTS)]
            found[start].append(_child(model, start, args.threads, steps))
    losses = {start: rounds[0]["loss"] for start, rounds in found.items()}
    others = [one for one in STARTS if not math.isclose(losses[one], losses[EAGER], rel_tol=1e-4)]
    if AUTO in others:
        raise SystemExit(f"{model}: another loss than eager's; the figures mean nothing.")
    entries = {
        start: {
            count: Spread(tuple(one["seconds"][count] for one in rounds))
            for count in rounds[0]["seconds"]
        }
        for start, rounds in found.items()
    }
    medians = {
        start: {count: spread.median for count, spread in spreads.items()}
        for start, spreads in entries.items()
    }
    return {
        "name": model,
        "steps": steps,
        "another first loss": others,  # compiled code draws dropout's numbers anew
        "seconds": {
            start: {count: spread.as_json() for count, spread in spreads.items()}
            for start, spreads in entries.items()
        },
        "verdicts": _verdicts(model, medians),
    }


def _child(model: str, start: str, threads: int, steps: int) -> dict[str, Any]:
    """`once` in a new process."""
    arguments = ["--models", model, "--steps", str(steps), "--child", start]
    arguments += ["--threads", str(threads)]
    try:
        found: dict[str, Any] = command.child("start", *arguments, timeout=1800, fresh_caches=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{model}, {start}: {error.stderr.strip()}") from error
    return found


def _verdicts(model: str, seconds: dict[str, dict[str, float]]) -> list[str]:
    ours, eager, compiled = seconds[AUTO], seconds[EAGER], seconds[COMPILE]
    lines = []
    if "50" in ours:
        more, limit = ours["50"] - eager["50"], MORE_THAN_EAGER.get(model, 1.5)
        lines.append(f"{_judged(more <= limit)}: 50 steps: {more:.2f} s more than eager's "
                     f"(at most {limit} s)")  # fmt: skip
    for count, limit in OF_EAGER.get(model, _OF_EAGER).items():
        if str(count) in ours:
            ratio = ours[str(count)] / eager[str(count)]
            lines.append(f"{_judged(ratio <= limit)}: {count:,} steps: {ratio:.2f}x eager's "
                         f"(at most {limit}x)")  # fmt: skip
    behind = [count for count in ours if ours[count] > compiled[count]]
    lines.append(f"{_judged(not behind)}: at most {COMPILE}'s after each number of steps"
                 + (f", but after {', '.join(behind)}" if behind else ""))  # fmt: skip
    lines.append(f"even with eager {break_even(ours, eager)}")
    return lines


def break_even(ours: dict[str, float], others: dict[str, float]) -> str:
    """From which number of steps on ``ours`` take no longer, of those that were timed."""
    behind = [int(count) for count in ours if ours[count] > others[count]]
    ahead = [int(count) for count in ours if not behind or int(count) > max(behind)]
    return f"from {min(ahead):,} steps on" if ahead else f"after more than {max(behind):,} steps"


def _judged(held: bool) -> str:
    return "pass" if held else "MISS"


def _table(measured: dict[str, Any]) -> Table:
    table = Table(title=f"{measured['name']}: seconds of the first N steps", title_justify="left")
    table.add_column("contender", no_wrap=True)
    shown = [str(count) for count in SHOWN if count <= measured["steps"]]
    for count in shown:
        table.add_column(f"{int(count):,}", justify="right", no_wrap=True)
    for name, seconds in measured["seconds"].items():
        table.add_row(name, *(f"{seconds[count]['median']:.3f}" for count in shown))
    return table


if __name__ == "__main__":
    main()
