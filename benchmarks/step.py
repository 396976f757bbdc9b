"""Milliseconds per training step: eager, fused, torch.compile and torchgraph, alternating.

    python -m benchmarks.step
    python -m benchmarks.step --device cuda --models gpt --rounds 9
    python -m benchmarks.step --contenders "eager,torchgraph aten"

All run in one process. Every contender trains its own copy of the model, from the same weights, on
the same batch, with AdamW. Each model is written to a file of its own.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import command, memory, record
from .cases import BATCH_1_TO_4, CASES, DEFAULT, GPU_DEFAULT, LARGE, SIX
from .contenders import (
    CONTENDERS,
    DEFAULT_BACKEND,
    EAGER,
    SWITCH_AT,
    TORCHGRAPH,
    Contender,
    Step,
    TrainGraph,
    capture_seconds,
)
from .floor import busy, floor
from .timing import Clock, alternate
from .work import PRECISIONS, Case, Work

WANTED_OF_EAGER = {"mlp": 1.25}
WANTED = {"mlp": 2.5, **dict.fromkeys(BATCH_1_TO_4, 1.3), **dict.fromkeys(LARGE, 1.0)}
"""Speed of the default backend against the best contender that is not ours; else `_NO_LESS`."""
_NO_LESS = 0.97
WANTED_MEAN, WANTED_MEAN_WITHOUT_MLP = 1.25, 1.03
"""Geometric means of the same over `SIX`."""
"""How much faster than eager torchgraph has to be; 1.0 for the models that are not named."""
WIDTH = 112


@dataclass
class Started:
    """A contender after its first step."""

    name: str
    step: Step
    graph: TrainGraph | None
    first_seconds: float
    first_loss: float
    settling_seconds: float


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, write the JSON and return what it holds."""
    args = _arguments(argv)
    device = torch.device(args.device)
    with command.threads(args.threads):
        return _run(args, device, command.console(WIDTH))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command.CommandLine(__doc__)
    parser.device()
    parser.rounds(5)
    parser.threads(None)
    parser.some("models", [], CASES)
    parser.some("contenders", CONTENDERS, CONTENDERS)
    parser.add_argument("--label", default="", help="ends the names of the results")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="float32")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory")
    args = parser.read(argv)
    args.models = args.models or list(GPU_DEFAULT if args.device == "cuda" else DEFAULT)
    if args.contenders[0] != EAGER:
        parser.error(f"--contenders are {EAGER}, and then any of {', '.join(CONTENDERS)}")
    if args.quick:
        args.rounds, args.no_compile, args.no_memory = min(args.rounds, 2), True, True
    return args


def _run(args: argparse.Namespace, device: torch.device, console: Console) -> dict[str, Any]:
    head = record.result(
        "step",
        device,
        rounds=args.rounds,
        least_seconds_per_round=0.02 if args.quick else 0.3,
        quick=args.quick,
        optimizer="AdamW",
        precision=args.precision,
    )
    result: dict[str, Any] = {**head, "models": []}
    how = (args.precision if PRECISIONS[args.precision] else "", args.label)
    console.print(record.heading(result), highlight=False)
    for name in args.models:
        measured = _measure(CASES[name], args, device, result["settings"], console)
        result["models"].append(measured)
        console.print(_table(measured))
        if not args.quick:
            console.print(_verdict(measured), highlight=False)
        one = {**head, "models": [measured]}
        command.save(console, one, args.out, "step", device.type, name, *how)
    if not args.quick:
        console.print(_means(result["models"]), highlight=False)
    return result


# --- measuring -----------------------------------------------------------------------------------


def _measure(
    case: Case,
    args: argparse.Namespace,
    device: torch.device,
    settings: dict[str, Any],
    console: Console,
) -> dict[str, Any]:
    torch.compiler.reset()  # else the ninth model would be one recompilation too many
    started: list[Started] = []
    skipped: dict[str, str] = {}
    about = _about(case, device, PRECISIONS[args.precision])
    for contender in (CONTENDERS[name] for name in args.contenders):
        reason = _why_not(contender, args, device)
        if not reason:
            reason = _begin(contender, case, device, PRECISIONS[args.precision], started)
        if reason:
            skipped[contender.name] = reason
    clock = Clock(device)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(case.name, total=args.rounds)
        spreads = alternate(
            clock,
            [one.step for one in started],
            rounds=args.rounds,
            least_seconds=settings["least_seconds_per_round"],
            after_round=lambda _: progress.advance(task),
        )
    times = {one.name: spread.median for one, spread in zip(started, spreads, strict=True)}
    others = [times[one.name] for one in started if one.graph is None]
    entries = []
    for one, spread in zip(started, spreads, strict=True):
        entries.append(
            {
                "name": one.name,
                "seconds_per_step": spread.as_json(),
                "speed_against_eager": times[EAGER] / spread.median,
                "speed_against_best": min(times.values()) / spread.median,
                "speed_against_best_other": min(others) / spread.median,
                "first_step_seconds": one.first_seconds,
                "capture_seconds": capture_seconds(one.graph) if one.graph else None,
                "cuda_graph": one.graph.report().cuda_graph if one.graph else None,
                "first_loss": one.first_loss,
                "settling_seconds": one.settling_seconds,
                "gpu_busy": busy(one.step, device),
                "memory": None if args.no_memory else _memory(case, one.name, args),
            }
        )
    return {**about, "contenders": entries, "skipped": skipped}


def _about(case: Case, device: torch.device, amp: torch.dtype | None) -> dict[str, Any]:
    """Name, size and floor: found before the contenders need the GPU's memory."""
    work = case.on(device, amp)
    found = {
        "name": case.name,
        "about": case.about,
        "parameters": sum(p.numel() for p in work.model.parameters()),
        "floor": floor(work, device),
    }
    if device.type == "cuda":
        del work
        torch.cuda.empty_cache()
    return found


def _why_not(contender: Contender, args: argparse.Namespace, device: torch.device) -> str:
    if contender.cuda_only and device.type != "cuda":
        return "needs a GPU"
    if contender.compiles and args.no_compile:
        return "--quick" if args.quick else "--no-compile"
    return ""


def _begin(
    contender: Contender,
    case: Case,
    device: torch.device,
    amp: torch.dtype | None,
    started: list[Started],
) -> str:
    """Take the first step; in words why it failed. Eager and torchgraph must not fail."""
    try:
        one = _first_step(contender, case.on(device, amp), device)
    except Exception as error:
        if contender.name in (EAGER, TORCHGRAPH):
            raise
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"
    if one.graph is not None:
        _check_loss(one, started[0], 1e-4 if amp is None else 1e-2)
    started.append(one)
    return ""


def _first_step(contender: Contender, work: Work, device: torch.device) -> Started:
    clock = Clock(device)
    torch.manual_seed(1)  # every contender draws the same dropout, where it draws as eager does
    losses: list[torch.Tensor] = []
    graphs: list[TrainGraph | None] = []
    steps: list[Step] = []

    def first() -> None:
        step, graph = contender.make(work)
        steps.append(step)
        graphs.append(graph)
        losses.append(step())

    seconds = clock.seconds(first)
    settling = clock.seconds(steps[0], contender.settles)
    return Started(contender.name, steps[0], graphs[0], seconds, losses[0].item(), settling)


def _check_loss(one: Started, eager: Started, tolerance: float) -> None:
    if not math.isclose(one.first_loss, eager.first_loss, rel_tol=tolerance):
        raise SystemExit(
            f"torchgraph's first loss is {one.first_loss}, eager's {eager.first_loss}: "
            "figures of a wrong step mean nothing."
        )


def _memory(case: Case, name: str, args: argparse.Namespace) -> dict[str, Any]:
    threads = torch.get_num_threads()
    return memory.of_child(
        case.name, name, torch.device(args.device), threads=threads, precision=args.precision
    )


# --- showing -------------------------------------------------------------------------------------


def _table(measured: dict[str, Any]) -> Table:
    title = f"{measured['name']}: {measured['about']}, {measured['parameters']:,} parameters"
    table = Table(title=title, title_justify="left", caption=_caption(measured), expand=False)
    table.add_column("contender", no_wrap=True)
    for heading in ("ms/step", "min-max", "vs eager", "vs best", "first s", "capture s", "peak MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in measured["contenders"]:
        spread = entry["seconds_per_step"]
        table.add_row(
            entry["name"],
            f"{1e3 * spread['median']:.3f}",
            f"{1e3 * spread['min']:.3f}-{1e3 * spread['max']:.3f}",
            f"{entry['speed_against_eager']:.2f}x",
            f"{entry['speed_against_best']:.2f}x",
            f"{entry['first_step_seconds']:.2f}",
            "" if entry["capture_seconds"] is None else f"{entry['capture_seconds']:.2f}",
            _megabytes(entry["memory"]),
            style="bold" if entry["name"].startswith("torchgraph") else "",
        )
    for name, reason in measured["skipped"].items():
        if reason != "needs a GPU":
            table.add_row(name, "skipped", style="dim")
    return table


def _caption(measured: dict[str, Any]) -> str:
    lines = [f"{name}: {why}" for name, why in measured["skipped"].items() if why != "needs a GPU"]
    methods = {m["method"] for e in measured["contenders"] if (m := e["memory"]) and "method" in m}
    lines += [f"peak: {method}" for method in sorted(methods)]
    if any(entry["name"] == DEFAULT_BACKEND for entry in measured["contenders"]):
        lines.append(f"{DEFAULT_BACKEND}: after its switch, with switch_at={SWITCH_AT}")
    least = measured["floor"]
    lines.append(
        f"floor: {1e3 * least['seconds']:.3f} ms; {least['flops'] / 1e9:.2f} GFLOP at "
        f"{least['flops_per_second'] / 1e9:.0f} GFLOP/s, {least['bytes'] / 1e6:.1f} MB of weights "
        f"and their state at {least['bytes_per_second'] / 1e9:.0f} GB/s, as measured"
    )
    lines += [
        f"{entry['name']}: the GPU is busy {100 * entry['gpu_busy']:.1f} % of the time"
        for entry in measured["contenders"]
        if entry["gpu_busy"] is not None
    ]
    lines += [
        f"{entry['name']}: no CUDA Graph: {entry['cuda_graph'].splitlines()[0]}"
        for entry in measured["contenders"]
        if entry["gpu_busy"] is not None and not (entry["cuda_graph"] or "capt").startswith("capt")
    ]
    return "\n".join(lines)


def _megabytes(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return "failed" if "error" in found else f"{found['bytes'] / 1e6:.1f}"


def _verdict(measured: dict[str, Any]) -> str:
    name = measured["name"]
    found = {entry["name"]: entry for entry in measured["contenders"]}
    lines = []
    if TORCHGRAPH in found:
        speed = found[TORCHGRAPH]["speed_against_eager"]
        lines.append(_line(f"{TORCHGRAPH} against eager", speed, WANTED_OF_EAGER.get(name, 1.0)))
    if DEFAULT_BACKEND in found:
        speed = found[DEFAULT_BACKEND]["speed_against_best_other"]
        wanted = WANTED.get(name, _NO_LESS)
        lines.append(_line(f"{DEFAULT_BACKEND} against the best other contender", speed, wanted))
    return "".join(f"{line}\n" for line in lines)


def _means(models: Sequence[dict[str, Any]]) -> str:
    """Over `SIX`; empty unless all of them were measured."""
    speeds = {
        model["name"]: entry["speed_against_best_other"]
        for model in models
        for entry in model["contenders"]
        if entry["name"] == DEFAULT_BACKEND
    }
    if not speeds.keys() >= set(SIX):
        return ""
    what = f"geometric mean of {DEFAULT_BACKEND} against the best other contender"
    six = [speeds[name] for name in SIX]
    five = [speeds[name] for name in SIX if name != "mlp"]
    return "\n".join(
        (
            _line(f"{what}, six models", statistics.geometric_mean(six), WANTED_MEAN),
            _line(
                f"{what}, without the MLP",
                statistics.geometric_mean(five),
                WANTED_MEAN_WITHOUT_MLP,
            ),
        )
    )


def _line(what: str, speed: float, wanted: float) -> str:
    verdict = "pass" if speed >= wanted else "MISS"
    return f"{verdict}: {what}: {speed:.2f}x (wanted: {wanted:.2f}x)"


if __name__ == "__main__":
    main()
