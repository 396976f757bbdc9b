"""Training steps with AdamW on the CPU: twenty models, by start, break-even, speed and memory.

    python -m benchmarks.table
    python -m benchmarks.table --models ppo,gpt --threads 1 --clock cpu
    python -m benchmarks.table --page

Each contender has a process of its own with empty caches. They start one after the other; then all
wait, and take turns, so that what else the machine does meets each of them. Each model is written
to a file of its own; ``--page`` draws docs/speed.md and its pictures from the files.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from . import command, memory, record, table_page
from .contenders import CONTENDERS, EAGER, Step, TrainGraph
from .start import AUTO, COMPILE, auto
from .table_cases import ENTRIES, Entry
from .table_child import Child, say, turns
from .timing import Spread

FUSED, ATEN, INDUCTOR = "eager fused", "torchgraph aten", "torchgraph inductor"
ROWS = (EAGER, FUSED, COMPILE, ATEN, INDUCTOR, AUTO)
FIRST = 20
"""So many steps are the start: both of a Graph's recordings, and a compilation at the first."""
_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
_AT_CALL = re.compile(r"switches to Inductor at call ([\d,]+)")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    if args.page:
        return {"written": [str(path) for path in table_page.write()]}
    if args.child:
        answer(args.models[0], args.child, args)
        return {}
    console = command.console()
    with command.threads(args.threads):
        head = record.result(
            "table",
            torch.device("cpu"),
            rounds=args.rounds,
            least_seconds_per_round=args.least,
            budget_seconds=args.budget,
            seconds_to_switch=args.to_switch,
            clock=args.clock,
            quick=args.quick,
            optimizer="AdamW",
        )
        result: dict[str, Any] = {**head, "models": []}
        console.print(record.heading(result), highlight=False)
        for name in args.models:
            _one(name, args, head, result, console)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.rounds(5)
    parser.threads(torch.get_num_threads())
    parser.some("models", ENTRIES, ENTRIES)
    parser.some("contenders", ROWS, ROWS)
    parser.add_argument(
        "--budget",
        type=float,
        default=600.0,
        help="seconds that a contender may take to start",
    )
    parser.add_argument(
        "--to-switch", type=float, default=600.0, help="seconds that auto goes on to its switch"
    )
    parser.add_argument(
        "--clock",
        choices=list(_CLOCKS),
        default="wall",
        help="of the steady state; cpu, where other work runs: needs --threads 1",
    )
    parser.add_argument("--page", action="store_true", help="only write docs/speed.md anew")
    parser.add_argument("--child", choices=ROWS, help=argparse.SUPPRESS)
    args = parser.read(argv)
    args.least = 0.02 if args.quick else 0.5
    if args.quick:
        args.rounds, args.budget = 1, min(args.budget, 60.0)
        args.contenders = [one for one in args.contenders if one not in (COMPILE, INDUCTOR)]
    if args.contenders[0] != EAGER:
        parser.error(f"--contenders are {EAGER}, and then any of {', '.join(ROWS)}")
    if args.clock == "cpu" and args.threads != 1:
        parser.error("--clock cpu counts one thread: --threads 1")
    return args


# --- one contender, in its own process -----------------------------------------------------------


def answer(model: str, contender: str, args: argparse.Namespace) -> None:
    """Start, and say so as a line of JSON; then do what each line of stdin says.

    ``run SECONDS`` times steps, ``train SECONDS`` goes on to the switch of `auto`, ``end`` gives
    the peaks of memory.
    """
    torch.set_num_threads(args.threads)
    before = memory.resident()
    work = ENTRIES[model].case.on(torch.device("cpu"))
    parameters = sum(p.numel() for p in work.model.parameters())
    step, graph = auto(work) if contender == AUTO else CONTENDERS[contender].make(work)
    now = _CLOCKS[args.clock]
    losses, seconds = _start(step)
    at = _switch_of(graph)
    draws = any(isinstance(one, nn.Dropout) and one.p for one in work.model.modules())
    found = {"parameters": parameters, "losses": losses, "draws": draws, "seconds": seconds}
    say(**found, switch_at=at, calls=FIRST)
    start_peak, reset = memory.peak(), memory.reset_peak()
    calls = FIRST
    for line in sys.stdin:
        verb, _, limit = line.strip().partition(" ")
        if verb == "end":
            break
        if verb == "run":
            taken, count = _steps(step, float(limit), now)
            say(seconds=taken / count, calls=(calls := calls + count))
        elif verb == "train":
            calls += _until_switched(step, float(limit), (at or 0) - calls)
            say(calls=calls, switched=at is not None and calls > at)
    peaks = {"start": start_peak, "steps": memory.peak() if reset else None, "before": before}
    say(memory=peaks)


def _start(step: Step) -> tuple[list[float], list[float]]:
    """The losses of the first steps, and the seconds after each of them."""
    losses, seconds = [], []
    start = time.perf_counter()
    for _ in range(FIRST):
        losses.append(step().item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def _switch_of(graph: TrainGraph | None) -> int | None:
    """The call from which `auto` runs compiled code; None where there is no switch."""
    found = _AT_CALL.search(graph.report().backend_plan) if graph is not None else None
    return int(found[1].replace(",", "")) if found else None


def _steps(step: Step, least: float, now: Callable[[], float]) -> tuple[float, int]:
    """What it took, by ``now``, and how many steps; at least ``least`` seconds of both clocks."""
    count, start, wall = 0, now(), time.perf_counter()
    while count == 0 or min(now() - start, time.perf_counter() - wall) < least:
        step()
        count += 1
    return now() - start, count


def _until_switched(step: Step, limit: float, left: int) -> int:
    """Steps, until ``left`` and some more are done or ``limit`` seconds are over; how many."""
    count, end = 0, time.perf_counter() + limit
    while count < left + FIRST and time.perf_counter() < end:
        step()
        count += 1
    return count


# --- all contenders of a model -------------------------------------------------------------------


def _one(
    name: str,
    args: argparse.Namespace,
    head: dict[str, Any],
    result: dict[str, Any],
    console: Console,
) -> None:
    entry = ENTRIES[name]
    try:
        entry.case.make()
    except ImportError as error:
        console.print(f"{name}: skipped, {error.name} is not installed", highlight=False)
        result["models"].append({"name": name, "skipped": f"{error.name} is not installed"})
        return
    measured = measure(entry, args)
    result["models"].append(measured)
    console.print(_shown(measured))
    command.save(console, {**head, "models": [measured]}, args.out, "table", "cpu", name)


def measure(entry: Entry, args: argparse.Namespace) -> dict[str, Any]:
    """Start all contenders of a model, let them take turns, and compare."""
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        children: dict[str, Child] = {}
        for contender in args.contenders:
            child = stack.enter_context(Child(_arguments_of(entry, contender, args)))
            try:
                child.started = child.hears(args.budget)
            except RuntimeError as error:
                skipped[contender] = str(error)
                continue
            children[contender] = child
        losses = {name: child.started["losses"] for name, child in children.items()}
        _compare_losses(losses, draws=children[EAGER].started["draws"])
        spreads = _in_turns(children, args)
        after = _after_the_switch(children, args)
        found = [
            _entry(name, child, children[EAGER], spreads, after) for name, child in children.items()
        ]
    return {
        "name": entry.case.name,
        "about": entry.case.about,
        "field": entry.field,
        "library": entry.library,
        "parameters": children[EAGER].started["parameters"],
        "contenders": found,
        "skipped": skipped,
    }


def _arguments_of(entry: Entry, contender: str, args: argparse.Namespace) -> list[str]:
    arguments = ["table", "--child", contender, "--models", entry.case.name]
    return [*arguments, "--threads", str(args.threads), "--clock", args.clock]


def _compare_losses(losses: dict[str, list[float]], *, draws: bool) -> None:
    """Aten's are eager's; compiled code's are near to them.

    ``draws``: the model has dropout, for which code that `torch.compile` makes draws other numbers.
    """
    for name, found in losses.items():
        same = found == losses[EAGER]
        apart = 5e-2 if draws and name == COMPILE else 1e-4
        near = math.isclose(found[0], losses[EAGER][0], rel_tol=apart)
        if not (same if name in (ATEN, AUTO) else near):
            raise SystemExit(f"{name}: other losses than eager's; figures of it mean nothing.")


def _in_turns(children: dict[str, Child], args: argparse.Namespace) -> dict[str, Spread]:
    """Seconds a step: in each round one figure of each."""
    found = turns(children, args.rounds, args.least, args.budget)
    return {name: Spread(tuple(one["seconds"] for one in told)) for name, told in found.items()}


def _after_the_switch(children: dict[str, Child], args: argparse.Namespace) -> dict[str, Spread]:
    """Of eager and `auto`, once `auto` runs compiled code; empty where the budget ended before."""
    if AUTO not in children or args.quick:
        return {}
    trained = children[AUTO].asks(f"train {args.to_switch}", args.to_switch + args.budget)
    if not trained["switched"]:
        return {}
    return _in_turns({name: children[name] for name in (EAGER, AUTO)}, args)


def _entry(
    name: str,
    child: Child,
    eager: Child,
    spreads: dict[str, Spread],
    after: dict[str, Spread],
) -> dict[str, Any]:
    ends = child.asks("end", 60)["memory"] if not child.memory else child.memory
    child.memory = ends
    seconds, switch = child.started["seconds"], child.started["switch_at"]
    switched = name == AUTO and bool(after)
    excess = seconds[-1] - eager.started["seconds"][-1]
    steady = after[name] if switched else spreads[name]
    base = after[EAGER] if switched else spreads[EAGER]
    even = break_even(excess, spreads[name].median, spreads[EAGER].median)
    if switched and (even is None or even > switch):
        behind = excess + (switch - FIRST) * (spreads[name].median - spreads[EAGER].median)
        even = break_even(behind, steady.median, base.median, begins=switch)
    return {
        "name": name,
        "first_step_seconds": seconds[0],
        "start_seconds": seconds[-1],
        "seconds_per_step": steady.as_json(),
        "before_switch": spreads[name].as_json() if name == AUTO else None,
        "speed_against_eager": base.median / steady.median,
        "break_even": None if name == EAGER else even,
        "switch_at": switch,
        "switched": switched if name == AUTO else None,
        "memory": ends,
    }


def break_even(excess: float, ours: float, eager: float, *, begins: int = FIRST) -> int | None:
    """From which step on no more time was taken than by eager; None for never.

    Args:
        excess: seconds behind eager after ``begins`` steps.
        ours: seconds of each further step.
        eager: the same of eager.
    """
    if excess <= 0:
        return begins if ours <= eager else None
    return begins + math.ceil(excess / (eager - ours)) if ours < eager else None


# --- showing -------------------------------------------------------------------------------------


def _shown(measured: dict[str, Any]) -> Table:
    title = f"{measured['name']}: {measured['about']}, {measured['parameters']:,} parameters"
    table = Table(title=title, title_justify="left", caption=_caption(measured))
    table.add_column("contender", no_wrap=True)
    for heading in ("first s", "even with eager", "ms/step", "min-max", "vs eager", "peak MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in measured["contenders"]:
        spread = one["seconds_per_step"]
        table.add_row(
            one["name"],
            f"{one['first_step_seconds']:.2f}",
            table_page.even(one),
            f"{1e3 * spread['median']:.3f}",
            f"{1e3 * spread['min']:.3f}-{1e3 * spread['max']:.3f}",
            f"{one['speed_against_eager']:.2f}x",
            f"{table_page.peak(one):.0f}",
        )
    return table


def _caption(measured: dict[str, Any]) -> str:
    lines = [f"{name}: {why}" for name, why in measured["skipped"].items()]
    lines += [
        f"{one['name']}: before its switch at call {one['switch_at']:,}"
        for one in measured["contenders"]
        if one["switched"] is False and one["switch_at"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
