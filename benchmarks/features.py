"""Milliseconds per step and peak memory of each training feature: eager against a Graph.

    python -m benchmarks.features
    python -m benchmarks.features --device cuda --features "AMP bfloat16; all" --rounds 9

A GPT with dropout, AdamW, from the same weights on the same batch; both sides of a feature
alternate in one process. The peak is what a step allocates at its most; on a GPU it is all that a
process of its own holds. The losses of the first steps must agree. Accumulation is also compared
with as many replays of forward and backward alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from torchgraph.lower.memory.allocations import METHOD, taken

from . import command, record
from .feature_cases import EAGER, FEATURES, GRAPH, QUICK, Size, Step, make, replays
from .timing import Clock, Spread, alternate

ACCUMULATION = "accumulation, k = 8"
WANTED_ACCUMULATION = 1.03
"""The most that a step of k micro-batches may take, in forwards and backwards of them all."""
FIRST_STEPS = 3


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, write the JSON and return what it holds."""
    args = _arguments(argv)
    device = torch.device(args.device)
    with command.threads(args.threads):
        if args.peak_of:
            return _print_peak(args, device)
        result = _run(args, device)
    console = command.shown(result, _table(result))
    console.print(_verdict(result), highlight=False)
    chosen = [] if set(args.features) == set(FEATURES) else args.features
    command.save(console, result, args.out, "features", device.type, *chosen)
    return result


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.device()
    parser.rounds(7)
    parser.threads(None)
    parser.add_argument("--features", default="", help="some of them, with semicolons between")
    parser.add_argument("--backend", choices=["aten", "inductor"], default="aten")
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory")
    parser.add_argument("--peak-of", nargs=2, metavar=("FEATURE", "SIDE"), help=argparse.SUPPRESS)
    args = parser.read(argv)
    args.features = [name.strip() for name in args.features.split(";") if name.strip()]
    args.features = args.features or list(FEATURES)
    unknown = [name for name in args.features if name not in FEATURES]
    if unknown:
        parser.error(f"no such feature: {unknown[0]}; there are {'; '.join(FEATURES)}")
    if args.quick:
        args.rounds, args.no_memory = 2, True
    return args


def _size(args: argparse.Namespace) -> Size:
    size = QUICK if args.quick else Size()
    return size if args.layers is None else dataclasses.replace(size, layers=args.layers)


def _run(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    size = _size(args)
    least = 0.01 if args.quick else 0.3
    result: dict[str, Any] = {
        **record.result(
            "features",
            device,
            rounds=args.rounds,
            least_seconds_per_round=least,
            quick=args.quick,
            backend=args.backend,
            **dataclasses.asdict(size),
        ),
        "features": [_measure(name, args, device, least) for name in args.features],
    }
    if ACCUMULATION in args.features:
        result["replays"] = _against_replays(args, device, least)
    return result


def _measure(
    name: str, args: argparse.Namespace, device: torch.device, least: float
) -> dict[str, Any]:
    size, clock = _size(args), Clock(device)
    steps = [
        make(name, EAGER, size, device),
        make(name, GRAPH, size, device, backend=args.backend),
    ]
    _check_losses(name, steps)
    eager, graph = alternate(clock, steps, rounds=args.rounds, least_seconds=least)
    found: dict[str, Any] = {
        "name": name,
        EAGER: {"seconds_per_step": eager.as_json()},
        GRAPH: {"seconds_per_step": graph.as_json()},
        "speed_against_eager": eager.median / graph.median,
    }
    if not args.no_memory:
        for side, step in zip((EAGER, GRAPH), steps, strict=True):
            on_gpu = device.type == "cuda"
            found[side]["memory"] = _peak_in_child(name, side, args) if on_gpu else _allocated(step)
    return found


def _check_losses(name: str, steps: Sequence[Step]) -> None:
    """The same dropout on both sides: the losses differ by rounding alone."""
    losses = []
    for step in steps:
        torch.manual_seed(1)
        losses.append([step().float().mean().item() for _ in range(FIRST_STEPS)])
    half = FEATURES[name].amp is not None
    for eager, graph in zip(*losses, strict=True):
        if not math.isclose(eager, graph, rel_tol=1e-2 if half else 1e-4):
            raise SystemExit(
                f"{name}: the losses are {losses[0]} in eager and {losses[1]} in the Graph: "
                "figures of a wrong step mean nothing."
            )


def _against_replays(
    args: argparse.Namespace, device: torch.device, least: float
) -> dict[str, Any]:
    size = _size(args)
    steps = [
        make(ACCUMULATION, GRAPH, size, device, backend=args.backend),
        replays(ACCUMULATION, size, device, backend=args.backend),
    ]
    whole, parts = alternate(Clock(device), steps, rounds=args.rounds, least_seconds=least)
    return {
        "step": whole.as_json(),
        "forwards and backwards": parts.as_json(),
        "ratio": _paired(whole, parts),
    }


def _paired(left: Spread, right: Spread) -> float:
    """The median of the ratios round by round: a slow round slows both."""
    ratios = tuple(a / b for a, b in zip(left.rounds, right.rounds, strict=True))
    return Spread(ratios).median


# --- memory ---------------------------------------------------------------------------------------


def _peak_in_child(name: str, side: str, args: argparse.Namespace) -> dict[str, Any]:
    """The peak of one side in a new process. ``{"error": ...}`` when it failed."""
    arguments = ["--peak-of", name, side, "--device", args.device, "--backend", args.backend]
    arguments += ["--threads", str(torch.get_num_threads())]
    arguments += [] if args.layers is None else ["--layers", str(args.layers)]
    return command.child_or_error("features", *arguments, timeout=600)


def _print_peak(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """One side, alone on the GPU: parameters, state and CUDA Graphs count."""
    name, side = args.peak_of
    step = make(name, side, _size(args), device, backend=args.backend)
    for _ in range(FIRST_STEPS):
        step()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(FIRST_STEPS):
        step()
    torch.cuda.synchronize(device)
    found = {
        "bytes": torch.cuda.max_memory_reserved(device),
        "method": "torch.cuda.max_memory_reserved over the steps after warm-up",
    }
    print(json.dumps(found))
    return found


def _allocated(step: Step) -> dict[str, Any]:
    """What one step allocates at its most; parameters and state were there before."""
    return {"bytes": taken([step])[0].peak, "method": METHOD}


# --- showing --------------------------------------------------------------------------------------


def _table(result: dict[str, Any]) -> Table:
    size = result["settings"]
    title = (
        f"GPT, {size['layers']} layers, width {size['width']}, {size['length']} tokens, "
        f"micro-batch {size['batch']}; backend {size['backend']}"
    )
    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("feature", no_wrap=True)
    for heading in ("eager ms", "graph ms", "min-max", "vs eager", "eager MB", "graph MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in result["features"]:
        eager, graph = (entry[side]["seconds_per_step"] for side in (EAGER, GRAPH))
        table.add_row(
            entry["name"],
            f"{1e3 * eager['median']:.2f}",
            f"{1e3 * graph['median']:.2f}",
            f"{1e3 * graph['min']:.2f}-{1e3 * graph['max']:.2f}",
            f"{entry['speed_against_eager']:.2f}x",
            _megabytes(entry[EAGER]),
            _megabytes(entry[GRAPH]),
        )
    return table


def _megabytes(side: dict[str, Any]) -> str:
    found = side.get("memory")
    if found is None:
        return ""
    return "failed" if "error" in found else f"{found['bytes'] / 1e6:.1f}"


def _verdict(result: dict[str, Any]) -> str:
    if "replays" not in result:
        return ""
    ratio = result["replays"]["ratio"]
    verdict = "pass" if ratio <= WANTED_ACCUMULATION else "MISS"
    return (
        f"{verdict}: a step of 8 micro-batches takes {ratio:.3f}x of 8 forwards and backwards "
        f"without an update (wanted: {WANTED_ACCUMULATION:.2f}x)"
    )


if __name__ == "__main__":
    main()
