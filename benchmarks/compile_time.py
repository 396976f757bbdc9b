"""How long until compiled code serves: torchgraph beside torch.compile, cold and from warm caches.

    python -m benchmarks.compile_time
    python -m benchmarks.compile_time --models bert_4,bert_12 --rounds 1

Seconds of a new process, from a model in memory until its first step by compiled code is over: for
torch.compile with the fused optimizer its second step, for a Graph with the backend "inductor" the
first that Inductor's code serves, recording and comparison included. Imports of torch, torchgraph
and transformers are left out. Cold: empty caches. Warm: the caches that the cold process filled.
Contenders alternate; medians over the rounds. Below, the stages of the Graph's seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch.optim import AdamW

from . import command, record
from .compile_time_cases import COMPILE_TIME_CASES
from .contenders import CONTENDERS, LR, TrainGraph, is_compiled, stage_seconds
from .timing import Spread
from .work import Work

COMPILE, OURS = "compile fused", "torchgraph inductor"
TIMED = (COMPILE, OURS)
CACHES = ("cold", "warm")
AT_MOST = {
    "cold": {"bert_12": 0.5, "llama_8": 0.5, "resnet50_64": 0.6},
    "warm": dict.fromkeys(COMPILE_TIME_CASES, 0.5),
}
"""The share of torch.compile's seconds that is wanted."""
_MOST_CALLS = 10
_WAIT = "compiling with Inductor"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    torch.set_num_threads(args.threads)
    if args.child:
        found = once(args.models[0], args.child)
        print(json.dumps(found))
        return found
    console = command.console()
    head = record.result("compile_time", torch.device("cpu"), rounds=args.rounds, quick=args.quick)
    result: dict[str, Any] = {**head, "models": []}
    console.print(record.heading(result), highlight=False)
    for name in args.models:
        result["models"].append(_measure(name, args))
    console.print(_table(result["models"]))
    console.print(_stages(result["models"]))
    console.print("\n".join(verdicts(result["models"])), highlight=False)
    chosen = [] if set(args.models) == set(COMPILE_TIME_CASES) else args.models
    command.save(console, result, args.out, "compile_time", *chosen)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.some("models", COMPILE_TIME_CASES, COMPILE_TIME_CASES)
    parser.rounds(3)
    parser.threads(2)
    parser.add_argument("--child", choices=TIMED, help=argparse.SUPPRESS)
    args = parser.read(argv)
    if args.quick:
        args.rounds = 1
    return args


# --- measuring -----------------------------------------------------------------------------------


def once(model: str, contender: str) -> dict[str, Any]:
    """Seconds until compiled code serves, in this process, and of what stages they are made."""
    work = COMPILE_TIME_CASES[model].on(torch.device("cpu"))
    return _ours(work) if contender == OURS else _compile(work)


def _compile(work: Work) -> dict[str, Any]:
    steps: list[Callable[[], object]] = []
    calls = [_seconds(lambda: steps.append(CONTENDERS[COMPILE].make(work)[0]))]
    calls += [_seconds(steps[0]) for _ in range(2)]
    return {"seconds": sum(calls), "stages": {}}


def _ours(work: Work) -> dict[str, Any]:
    graph = TrainGraph(work, AdamW(work.model.parameters(), lr=LR), "inductor")
    calls: list[float] = []
    while not is_compiled(graph):
        if len(calls) == _MOST_CALLS:
            raise SystemExit(str(graph.report()))
        calls.append(_seconds(lambda: graph(work.x, work.y)))
    found = stage_seconds(graph)
    made = {name: found[name] for name in ("building graph", "building plan")}
    waits = {name: found[name] for name in found if name.startswith(_WAIT)}
    stages = {
        "recording, and lowering for Inductor": sum(calls[:-1]) - sum(made.values()),
        **made,
        **waits,
        "the first call by compiled code": calls[-1] - waits[_WAIT],
    }
    return {"seconds": sum(calls), "stages": stages}


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _measure(model: str, args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {
        f"{cache} {name}": [] for cache in CACHES for name in TIMED
    }
    for number in range(args.rounds):
        for offset in range(len(TIMED)):
            contender = TIMED[(number + offset) % len(TIMED)]
            with tempfile.TemporaryDirectory() as folder:
                for cache in CACHES:
                    found[f"{cache} {contender}"].append(_child(model, contender, folder, args))
    return {
        "name": model,
        "seconds": {
            key: Spread(tuple(one["seconds"] for one in rounds)).as_json()
            for key, rounds in found.items()
        },
        "stages": {
            cache: {
                stage: Spread(tuple(one["stages"][stage] for one in rounds)).median
                for stage in rounds[0]["stages"]
            }
            for cache, rounds in ((cache, found[f"{cache} {OURS}"]) for cache in CACHES)
        },
    }


def _child(model: str, contender: str, folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """`once` in a new process, whose caches are in ``folder``."""
    caches = {
        "TORCHGRAPH_CACHE_DIR": str(Path(folder, "torchgraph")),
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
    }
    before = {name: os.environ.get(name) for name in caches}
    os.environ.update(caches)
    arguments = ["--models", model, "--child", contender, "--threads", str(args.threads)]
    try:
        found: dict[str, Any] = command.child("compile_time", *arguments, timeout=1800)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{model}, {contender}: {error.stderr.strip()}") from error
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return found


# --- showing -------------------------------------------------------------------------------------


def ratio(model: dict[str, Any], cache: str) -> float:
    """Our seconds over those of torch.compile."""
    ours, theirs = (model["seconds"][f"{cache} {name}"]["median"] for name in (OURS, COMPILE))
    return float(ours / theirs)


def verdicts(models: Sequence[dict[str, Any]]) -> list[str]:
    """Each ratio that is wanted, held or missed; and how a cold start grows with the layers."""
    lines = []
    for model in models:
        for cache in CACHES:
            limit, found = AT_MOST[cache].get(model["name"]), ratio(model, cache)
            if limit is not None:
                lines.append(f"{_judged(found <= limit)}: {model['name']}, {cache}: {found:.2f}x "
                             f"{COMPILE}'s (at most {limit}x)")  # fmt: skip
    cold = {model["name"]: model["seconds"][f"cold {OURS}"]["median"] for model in models}
    if {"bert_12", "bert_24"} <= cold.keys():
        growth = cold["bert_24"] / cold["bert_12"]
        lines.append(f"{_judged(growth < 1.1)}: cold, 24 layers over 12: {growth:.2f} (below 1.1)")
    return lines


def _judged(held: bool) -> str:
    return "pass" if held else "MISS"


def _table(models: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="seconds until compiled code serves", title_justify="left")
    table.add_column("model", no_wrap=True)
    for cache in CACHES:
        for heading in (f"{cache} compile", "torchgraph", "ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
    for model in models:
        cells = []
        for cache in CACHES:
            cells += [f"{model['seconds'][f'{cache} {one}']['median']:.1f}" for one in TIMED]
            cells.append(f"{ratio(model, cache):.2f}")
        table.add_row(model["name"], *cells)
    return table


def _stages(models: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="the Graph's seconds by stage", title_justify="left")
    table.add_column("stage", no_wrap=True)
    columns = [(model, cache) for model in models for cache in CACHES]
    for model, cache in columns:
        table.add_column(f"{model['name']}\n{cache}", justify="right", no_wrap=True)
    names = dict.fromkeys(name for model, cache in columns for name in model["stages"][cache])
    for name in names:
        cells = (model["stages"][cache].get(name) for model, cache in columns)
        table.add_row(name, *("" if value is None else f"{value:.2f}" for value in cells))
    return table


if __name__ == "__main__":
    main()
