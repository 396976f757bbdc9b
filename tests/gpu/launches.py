"""Small steps, where a GPU waits for launches: eager, compiled, a hand-made CUDA Graph, ours.

    python -m tests.gpu.launches mlp,act bfloat16 all|few [--dry]

Contenders are prepared in the order of what they teach; when the time for that is over, the rest
is left out with a word. Then, in turn with the other jobs, they alternate, timed by events.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.cases import CASES
from benchmarks.contenders import CONTENDERS, EAGER, TORCHGRAPH, Step, TrainGraph
from benchmarks.timing import Spread, alternate
from benchmarks.work import PRECISIONS, Work

from . import job
from .machine import Machine, machine

OURS = "torchgraph"
MANUAL = "manual cuda graph"
ORDER = (
    EAGER,
    "eager fused",
    MANUAL,
    TORCHGRAPH,
    "torchgraph aten fused",
    "torchgraph inductor",
    "compile reduce-overhead",
    "compile fused",
)
WARM, WARM_DRY = 12, 9
"""Calls before the measuring: what records, confirms, warms up and captures is over by then."""
NEAR = {"float32": (1e-3, 1e-2), "bfloat16": (2e-2, 5e-2)}
"""How far the first and the last loss of the warm-up may be from eager's, relatively."""
ACTIVE = (EAGER, MANUAL, TORCHGRAPH)
"""Whose kernels are counted; the few where the others teach nothing."""
WITH_THE_MLP = "walked with the MLP"


@dataclass
class Prepared:
    """The contenders of a case that are ready, and why others are not."""

    case: str
    steps: dict[str, Step] = field(default_factory=dict)
    losses: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """A row for each case: medians and spreads by contender, and what was left out."""
    names = ("cases", "precision", "contenders")
    choices = {"precision": tuple(PRECISIONS), "contenders": ("all", "few")}
    args = job.arguments(__doc__, *names, **choices)
    few = args.contenders == "few"
    with machine(dry=args.dry) as on:
        prepared = [prepare(name, args.precision, on, few) for name in args.cases.split(",")]
        for one in prepared:  # what is known, should no turn come
            seconds = {name: round(s, 1) for name, s in one.seconds.items()}
            job.row(f"{one.case}, prepared", prepare_seconds=seconds, skipped=one.skipped)
        job.turn()
        gc.collect()
        gc.freeze()  # else each round's collection goes through all that a compiler has left
        for one in prepared:
            with job.case(one.case, precision=args.precision):
                job.row(one.case, precision=args.precision, **measured(one, args.precision, on))


def prepare(case: str, precision: str, on: Machine, few: bool) -> Prepared:
    """Warm up each contender, or a few, on its own copy of the model."""
    torch.compiler.reset()
    found = Prepared(case)
    for name in ORDER:
        if few and name not in ACTIVE:
            found.skipped[name] = WITH_THE_MLP
        elif job.late(max(found.seconds.values(), default=0.0)):  # as long as the longest so far
            found.skipped[name] = "no time was left to prepare it"
        else:
            _prepare(found, name, precision, on)
    return found


def _prepare(found: Prepared, name: str, precision: str, on: Machine) -> None:
    began = time.perf_counter()
    try:
        step, graph = CONTENDERS[name].make(_work(found.case, precision, on))
        losses = [step().clone() for _ in range(WARM_DRY if on.dry else WARM)]
        found.losses[name] = (losses[0].item(), losses[-1].item())
        found.steps[name] = step
        if graph is not None:
            _is_replayed(graph)
    except Exception as error:  # of a contender: the others are prepared all the same
        found.steps.pop(name, None)
        found.skipped[name] = job.said_by(error)
        job.still_there()
    found.seconds[name] = time.perf_counter() - began


def _work(case: str, precision: str, on: Machine) -> Work:
    work = CASES[case].on(on.device, PRECISIONS[precision])
    if on.dry and case in ("act", "gpt", "vit_tiny"):  # seconds on a CPU, which teach nothing
        return work._replace(x=work.x[:1], y=work.y[:1])
    return work


def _is_replayed(graph: TrainGraph) -> None:
    status = graph.report().cuda_graph
    if not status.startswith("captured"):
        raise RuntimeError(f"no CUDA Graph: {status.splitlines()[0]}")


def measured(one: Prepared, precision: str, on: Machine) -> dict[str, Any]:
    """Seconds of a step by contender, ratios, what is wrong in words."""
    names = list(one.steps)
    rounds, least = (1, 1e-4) if on.dry else (5, 0.1)
    spreads = alternate(
        on.clock(), [one.steps[name] for name in names], rounds=rounds, least_seconds=least
    )
    found = dict(zip(names, spreads, strict=True))
    active = {n: on.activity(one.steps[n], 1 if on.dry else 5) for n in ACTIVE if n in one.steps}
    return {
        "outcome": "; ".join([*_missing(one), *_far(one, precision)]) or "ok",
        "refused": _missing(one),
        "seconds": {name: spread.as_json() for name, spread in found.items()},
        "ratios": _ratios(found),
        "busy": {name: one and one.busy for name, one in active.items()},
        "kernels": {name: one and one.kernels for name, one in active.items()},
    }


def _ratios(found: dict[str, Spread]) -> dict[str, float]:
    """Speed of our best against: eager, the best of PyTorch without graphs made by hand, those."""
    ours = [s.median for name, s in found.items() if name.startswith(OURS)]
    others = [s.median for name, s in found.items() if not name.startswith(OURS) and name != MANUAL]
    against = {"eager": [found[EAGER].median] if EAGER in found else [], "best": others}
    against[MANUAL] = [found[MANUAL].median] if MANUAL in found else []
    return {name: min(them) / min(ours) for name, them in against.items() if them and ours}


def _missing(one: Prepared) -> list[str]:
    """Contenders of ours that are not there."""
    return [
        f"{name}: {why}"
        for name, why in one.skipped.items()
        if name.startswith(OURS) and why != WITH_THE_MLP
    ]


def _far(one: Prepared, precision: str) -> list[str]:
    """Contenders of ours that compute something else than eager."""
    wrong = []
    right = one.losses.get(EAGER)
    if right is None:
        return ["eager is missing: no loss was compared"]
    for name, losses in one.losses.items():
        if name.startswith(OURS):
            for loss, wanted, near in zip(losses, right, NEAR[precision], strict=True):
                if not abs(loss - wanted) <= near * abs(wanted):
                    wrong.append(f"{name}: a loss of {loss:.6g}, not {wanted:.6g}")
    return wrong


if __name__ == "__main__":
    main()
