"""How long the start takes: the first step, and 16 of `auto` beside the process that compiles.

    python -m benchmarks.start
    python -m benchmarks.start --models gpt --rounds 9

Each figure comes from a process of its own that has trained nothing before; contenders alternate,
medians over the rounds. `cold`: nothing compiled is on disk. `warm`: a process before it compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from . import record
from .cases import CASES
from .contenders import CONTENDERS, DEFAULT_BACKEND, EAGER, SWITCH_AT, TORCHGRAPH
from .timing import Clock, Spread

STEPS = SWITCH_AT
"""What `auto` runs on aten here, beside the compiler: ``switch_at`` is given."""
AUTO = DEFAULT_BACKEND
INDUCTOR = "torchgraph inductor"
WARM_SECONDS = {"gpt": 5.0}
"""Most seconds that the first step of a warm inductor may take."""


@dataclass(frozen=True)
class Start:
    """A contender, and what it finds on disk."""

    contender: str
    warm: bool = False

    @property
    def name(self) -> str:
        """As it is shown."""
        compiles = self.contender in (AUTO, INDUCTOR)
        return (
            f"{self.contender}, {'warm' if self.warm else 'cold'}" if compiles else self.contender
        )


STARTS = (Start(EAGER), Start(TORCHGRAPH), Start(AUTO), Start(INDUCTOR, warm=True))
LIMITS = (
    ("first step of auto, of aten's", "first_step", AUTO, 1.2),
    (f"first {STEPS} steps of auto, of aten's", "first_steps", AUTO, 1.5),
)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    if args.child:
        found = once(args.models[0], args.child, args.threads)
        print(json.dumps(found))
        return found
    device, console = torch.device("cpu"), Console(width=100)
    result: dict[str, Any] = {
        "benchmark": "start",
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "device": device.type,
        **record.surroundings(device),
        "settings": {"rounds": args.rounds, "steps": STEPS, "quick": args.quick},
        "models": [],
    }
    console.print(record.heading(result), highlight=False)
    for name in args.models:
        measured = _measure(name, args)
        result["models"].append(measured)
        console.print(_table(measured))
        if not args.quick:
            console.print("\n".join(measured["verdicts"]), highlight=False)
    console.print(f"written to {record.save(result, args.out, 'start-cpu')}", soft_wrap=True)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=["mlp", "conv6", "mobilenet_v2", "gpt", "bert", "resnet18"],
        help=f"a comma-separated choice of {', '.join(CASES)}",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="does it run? figures mean nothing")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    parser.add_argument("--child", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    unknown = [name for name in args.models if name not in CASES]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(CASES)}")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.quick:
        args.rounds = 1
    return args


def once(model: str, contender: str, threads: int) -> dict[str, Any]:
    """Seconds of the first step and of the first 16, in this process, which trained nothing yet."""
    torch.set_num_threads(threads)
    clock = Clock(torch.device("cpu"))
    work = CASES[model].on(torch.device("cpu"))
    step, _ = CONTENDERS[contender].make(work)
    losses: list[float] = []
    first = clock.seconds(lambda: losses.append(step().item()))
    others = clock.seconds(step, STEPS - 1)
    return {"first_step": first, "first_steps": first + others, "loss": losses[0]}


# --- measuring -----------------------------------------------------------------------------------


def _measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    starts = [start for start in STARTS if not (args.quick and start.contender == INDUCTOR)]
    found: dict[str, list[dict[str, Any]]] = {start.name: [] for start in starts}
    with tempfile.TemporaryDirectory() as kept:
        for start in starts:
            if start.warm:
                _child(model, start, args.threads, kept)  # compiles
        for number in range(args.rounds):
            for offset in range(len(starts)):
                start = starts[(number + offset) % len(starts)]
                found[start.name].append(_child(model, start, args.threads, kept))
    entries = []
    for start in starts:
        rounds = found[start.name]
        if not math.isclose(rounds[0]["loss"], found[EAGER][0]["loss"], rel_tol=1e-4):
            raise SystemExit(f"{start.name}: another loss than eager's; its figures mean nothing.")
        spreads = {k: Spread(tuple(r[k] for r in rounds)) for k in ("first_step", "first_steps")}
        entries.append({"name": start.name, "loss": rounds[0]["loss"],
                        **{k: spread.as_json() for k, spread in spreads.items()}})  # fmt: skip
    return {"name": model, "starts": entries, "verdicts": _verdicts(model, entries)}


def _child(model: str, start: Start, threads: int, kept: str) -> dict[str, Any]:
    """`once` in a new process."""
    command = [sys.executable, "-m", "benchmarks.start", "--models", model]
    command += ["--child", start.contender, "--threads", str(threads)]
    with tempfile.TemporaryDirectory() as fresh:
        cache = kept if start.warm else fresh
        environment = {
            **os.environ,
            "TORCHGRAPH_CACHE_DIR": cache,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(cache, "inductor")),
        }
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[1],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{model}, {start.name}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _verdicts(model: str, entries: Sequence[dict[str, Any]]) -> list[str]:
    by_name = {entry["name"]: entry for entry in entries}
    aten = by_name[TORCHGRAPH]
    lines = []
    for what, key, contender, limit in LIMITS:
        ours = by_name[Start(contender).name]
        ratio = ours[key]["median"] / aten[key]["median"]
        lines.append(f"{_judged(ratio <= limit)}: {what}: {ratio:.2f}x (at most {limit}x)")
    warm, limit = by_name.get(Start(INDUCTOR, warm=True).name), WARM_SECONDS.get(model)
    if warm is not None and limit is not None:
        seconds = warm["first_step"]["median"]
        lines.append(f"{_judged(seconds <= limit)}: warm start of inductor: {seconds:.1f} s "
                     f"(at most {limit} s)")  # fmt: skip
    return lines


def _judged(held: bool) -> str:
    return "pass" if held else "MISS"


def _table(measured: dict[str, Any]) -> Table:
    table = Table(title=measured["name"], title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("first step s", "min-max", f"first {STEPS} steps s", "min-max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in measured["starts"]:
        cells = []
        for key in ("first_step", "first_steps"):
            spread = entry[key]
            cells += [f"{spread['median']:.3f}", f"{spread['min']:.3f}-{spread['max']:.3f}"]
        table.add_row(entry["name"], *cells)
    return table


if __name__ == "__main__":
    main()
