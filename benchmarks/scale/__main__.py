"""Growth on paper: step time and memory per rank, for a 7B and a 70B GPT on 8 to 4,096 GPUs.

    python -m benchmarks.scale
    python -m benchmarks.scale --models 70B --gpus 64,512 --gpu B200
    python -m benchmarks.scale --measure

With ``--measure`` instead: data-parallel steps of 1, 2 and 4 processes of this machine. The
constants of the machine are fitted on some models, others are predicted, and both are measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from .. import command, record
from . import growth
from .fit import Here, fitted
from .growth import MODELS, Model, Plan, Predicted, predicted
from .machines import GIB, GPUS, Gpu, Reached
from .ranks import CASES, Case, Effort, Measured, measure

CPU = torch.device("cpu")
WIDTH = 80
COUNTS = (8, 64, 512, 4096)
TOKENS = 4 * 2**20
"""Of a step, where each replica has at least a sequence."""
RANKS = (1, 2, 4)
BAND = (0.8, 1.25)
"""Predicted over measured is to lie in it."""

PUBLISHED = {8: 5762, 128: 5605}
"""Tokens a second and GPU of Llama 3.1 8B: torchtitan's FSDP without torch.compile, by GPUs."""
PUBLISHED_GPU = "H100 96GB, 500 W"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Predict, or measure; print the tables, write the JSON and return what it holds."""
    parser = command.CommandLine(__doc__)
    parser.some("models", ("7B", "70B"), MODELS)
    parser.add_argument("--gpu", choices=list(GPUS), default="H100")
    parser.add_argument("--gpus", default=",".join(map(str, COUNTS)), help="how many, by commas")
    parser.add_argument("--measure", action="store_true", help="processes of this machine")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for quiet")
    args = parser.read(argv)
    with command.threads(1):
        if args.measure:
            return _measured(args)
        return _grown(args)


# --- GPUs that are not here ----------------------------------------------------------------------


def _grown(args: Any) -> dict[str, Any]:
    console = command.console(WIDTH)
    gpu, reached = GPUS[args.gpu], Reached()
    counts = [int(count) for count in args.gpus.split(",")]
    head = record.result("scale", CPU, gpu=asdict(gpu), reached=asdict(reached), quick=args.quick)
    result: dict[str, Any] = {**head, "assumed": list(growth.ASSUMED), "models": []}
    for line in (*growth.ASSUMED, _rates_line(gpu, reached)):
        console.print(f"· {line}", highlight=False, style="dim")
    for name in args.models:
        model = MODELS[name]
        found = [
            _row(plan, predicted(model, plan, gpu, reached), gpu, reached)
            for plan in growth.plans(counts, model, TOKENS)
        ]
        size = growth.parameters(model)
        result["models"].append({"name": name, "parameters": size, "rows": found})
        console.print(_table(model, size, gpu, found))
    result["published"] = beside_published(reached)
    console.print(_published_table(result["published"]))
    command.save(console, result, args.out, "scale")
    return result


def _rates_line(gpu: Gpu, reached: Reached) -> str:
    parts = ", ".join(f"{value:.0%} of {name}" for name, value in asdict(reached).items())
    return (
        f"{gpu.name}: {gpu.bfloat16 / 1e12:.0f} TFLOP/s, {gpu.bytes / 1e12:.2f} TB/s, "
        f"{gpu.memory / 1e9:.0f} GB, {gpu.nvlink / 1e9:.0f} and {gpu.network / 1e9:.0f} GB/s to "
        f"others, of which are reached {parts}"
    )


def _row(plan: Plan, found: Predicted, gpu: Gpu, reached: Reached) -> dict[str, Any]:
    second = found.tokens / found.seconds
    return {
        "plan": asdict(plan),
        "seconds": found.seconds,
        "tokens": found.tokens,
        "tokens_per_second_and_gpu": second / plan.gpus,
        "bytes_per_rank": found.bytes,
        "fits": found.bytes <= gpu.memory * reached.memory,
        "waits": found.exposed / found.seconds,
        "bubble": max(0.0, found.bubble) / found.seconds,
        "sent_per_rank": found.wired,
        "of_peak": found.flops / found.seconds / plan.gpus / gpu.bfloat16,
    }


def _table(model: Model, size: int, gpu: Gpu, rows: Iterable[dict[str, Any]]) -> Table:
    title = f"{model.name}: {size / 1e9:.2f} billion parameters, sequences of {model.length}"
    table = _plain_table(f"{title}, {gpu.name}")
    names = ("GPUs", "ZeRO", "tp", "pp", "k", "GiB", "fits", "s/step", "tok/s", "peak", "waits")
    for name in (*names, "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in rows:
        plan = row["plan"]
        if last not in (None, plan["gpus"]):
            table.add_section()
        last = plan["gpus"]
        table.add_row(
            *(str(plan[key]) for key in ("gpus", "zero", "tensor", "stages", "micro_batches")),
            f"{row['bytes_per_rank'] / GIB:.0f}",
            "yes" if row["fits"] else "no",
            f"{row['seconds']:.3g}",
            f"{row['tokens_per_second_and_gpu']:.0f}",
            f"{row['of_peak']:.0%}",
            f"{row['waits']:.0%}",
            f"{row['bubble']:.0%}",
            style=None if row["fits"] else "dim",
        )
    how = "; each layer runs its forward part twice" if model.layers > 40 else ""
    table.caption = (
        f"k micro-batches of one sequence{how}; tok/s of one GPU; peak: the part of its FLOPs that "
        "go into products, nothing twice; waits for ZeRO and data parallel; idle in the pipeline"
    )
    return table


def _plain_table(title: str) -> Table:
    left = {"title_justify": "left", "caption_justify": "left"}
    return Table(title=title, box=box.SIMPLE_HEAD, padding=0, width=WIDTH, **left)  # type: ignore[arg-type]  # fmt: skip


def beside_published(reached: Reached) -> dict[str, Any]:
    """The reached part of products that explains the run on the fewest GPUs; the others with it.

    What torchtitan computes twice (selective checkpointing) is in that part.
    """
    model, gpu = MODELS["8B"], GPUS[PUBLISHED_GPU]

    def per_gpu(count: int, part: float) -> float:
        like = replace(
            reached, products=part, attention=part * reached.attention / reached.products
        )
        found = predicted(model, Plan(count, 3, batch=2, gathered=2), gpu, like)
        return found.tokens / found.seconds / count

    fewest = min(PUBLISHED)
    low, high = 0.05, 1.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        slow = per_gpu(fewest, middle) < PUBLISHED[fewest]
        low, high = (middle, high) if slow else (low, middle)
    rows = [
        {"gpus": count, "published": there, "predicted": (mine := per_gpu(count, low)),
         "ratio": mine / there, "fitted": count == fewest}
        for count, there in PUBLISHED.items()
    ]  # fmt: skip
    return {"model": "8B", "gpu": gpu.name, "source": gpu.source, "products": low, "rows": rows}


def _published_table(found: dict[str, Any]) -> Table:
    title = f"{found['model']} on {found['gpu']}, ZeRO 3, two sequences of 8192: tokens/s/GPU"
    table = _plain_table(title)
    for name in ("GPUs", "published", "predicted", "ratio", ""):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        table.add_row(
            str(row["gpus"]),
            str(row["published"]),
            f"{row['predicted']:.0f}",
            f"{row['ratio']:.2f}",
            f"products at {found['products']:.0%} of peak" if row["fitted"] else "predicted",
        )
    table.caption = "published by torchtitan, December 2024: FSDP without torch.compile"
    return table


# --- this machine --------------------------------------------------------------------------------


def _measured(args: Any) -> dict[str, Any]:
    console = command.console(WIDTH)
    effort = Effort(2, 0.02, 0.0) if args.quick else Effort(12, 0.12, args.patience)
    cases = [case for case in CASES if not args.quick or case.name in QUICK]
    head = record.result("scale-here", CPU, quick=args.quick, **asdict(effort))
    result: dict[str, Any] = {**head, "rows": []}
    console.print(record.heading(result), highlight=False)
    measured = [one for ranks in RANKS for one in measure(ranks, cases, effort)]
    by_name = {case.name: case for case in cases}
    here = fitted(one for one in measured if by_name[one.case].fits)
    result["machine_constants"] = {
        **{name: value for name, value in asdict(here).items() if name != "crowds"},
        "crowds": [asdict(crowd) for crowd in here.crowds],
    }
    result["rows"] = [_here_row(here, one, by_name[one.case]) for one in measured]
    _print_here(console, result["rows"])
    command.save(console, result, args.out, "scale", "here")
    return result


QUICK = ("mlp 256x3", "conv 16x4", "mlp 1024x4")


def _here_row(here: Here, one: Measured, case: Case) -> dict[str, Any]:
    found = here.seconds(one)
    return {
        "model": one.case,
        "processes": one.ranks,
        "fitted": case.fits,
        "measured_seconds": one.seconds,
        "least": one.spread[0],
        "most": one.spread[1],
        "processors_of_others": one.others,
        "predicted_seconds": found,
        "ratio": found / one.seconds,
    }


def _print_here(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = _plain_table("Data-parallel steps of processes of one thread")
    for name in ("model", "processes", "measured ms", "from", "to", "predicted ms", "ratio", ""):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in sorted(rows, key=lambda row: (not row["fitted"], row["model"], row["processes"])):
        table.add_row(
            row["model"],
            str(row["processes"]),
            *(f"{1e3 * row[k]:.2f}" for k in ("measured_seconds", "least", "most")),
            f"{1e3 * row['predicted_seconds']:.2f}",
            f"{row['ratio']:.2f}",
            "fitted" if row["fitted"] else "",
        )
    console.print(table)
    others = [row for row in rows if not row["fitted"]]
    inside = sum(BAND[0] <= row["ratio"] <= BAND[1] for row in others)
    console.print(
        f"Of those that nothing was fitted on, {inside} of {len(others)} lie within {BAND[0]} to "
        f"{BAND[1]}.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
