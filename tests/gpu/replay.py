"""Steps as CUDA Graphs beside eager: 30 of each, with all that happens in real training.

    python -m tests.gpu.replay mlp [--dry]

Each scenario runs four times: eager, eager again, a Graph whose CUDA Graphs are run op by op, and
a Graph as it is.

* A CUDA Graph gives the bits of the same program op by op.
* Both are eager within rounding: an optimizer's numbers are computed on the host in float64, and
  reach the GPU as tensors. In float64 30 steps leave no room for a rate or a mask that is wrong.
* Rates, decays, counters, the scale and the state of the generator are eager's to the bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import job
from .machine import MIB, Machine, machine, op_by_op
from .ops import error
from .training import MODELS, OVERFLOWS, STEPS, Eager, Graphed, Scenario, Side, Trace, run

ALL: dict[str, Any] = {
    "schedule": True,
    "decay": True,
    "clip": 0.5,
    "second_shape": True,
    "joins": True,
    "restore": True,
    "evaluate": True,
}
FEATURES = [
    Scenario("plain"),
    Scenario("capturable", optimizer="AdamW capturable"),
    Scenario("lr schedule", schedule=True),
    Scenario("weight decay by hand", decay=True),
    Scenario("overflow", dtype=torch.float32, amp=torch.float16, optimizer="SGD", overflow=True),
    Scenario("3 micro-batches", micro_batches=3),
    Scenario("clipping", clip=0.5),
    Scenario("second shape", second_shape=True),
    Scenario("late gradient", joins=True),
    Scenario("state_dict", restore=True),
    Scenario("evaluation", evaluate=True),
]
BOUNDS = {torch.float64: 1e-9, torch.float16: 2e-2}
"""Of norm(graph - eager) / norm(eager), for each loss and each state, by what is computed in.

In float32 states have none: where a gradient is nothing but rounding, as of a bias before a batch
norm, AdamW makes steps of full size of it. Losses have one.
"""
LOSSES = 2e-2
"""Of each loss, whatever is computed in."""
DRY = ("overflow", "3 micro-batches", "all at once")
"""They walk all lines; on the CPU the others would only repeat them."""


def scenarios(model: str, *, dry: bool = False) -> list[Scenario]:
    """Those of a model: each feature alone on the MLP, all at once on each, and float32."""
    everything = Scenario("all at once", model, **ALL)
    single = Scenario("float32", model, dtype=torch.float32)
    if model != "mlp":
        return [single] if dry else [everything, single]
    found = [*FEATURES, everything, single]
    return [one for one in found if one.name in DRY] if dry else found


def main() -> None:
    """A row for each scenario; then, in turn, one for the time and memory of the model's step."""
    args = job.arguments(__doc__, "model", model=tuple(MODELS))
    torch.backends.cudnn.deterministic = True  # else eager does not repeat itself
    with machine(dry=args.dry) as on:
        for scenario in scenarios(args.model, dry=args.dry):
            with job.case(scenario.name, model=args.model):
                job.row(scenario.name, model=args.model, **compared(scenario, on, args.seed))
        torch.backends.cudnn.deterministic = False
        job.turn()
        for kind in ("eager", "graph"):
            with job.case(f"step, {kind}", model=args.model):
                plain = Scenario(kind, args.model, dtype=torch.float32)
                side = Eager(plain, on) if kind == "eager" else Graphed(plain, on)
                job.row(f"step, {kind}", model=args.model, **_step(side, args.seed))


def compared(scenario: Scenario, on: Machine, seed: int) -> dict[str, Any]:
    """The four runs beside each other: ``outcome`` and figures."""
    eager, again = (_run(lambda: Eager(scenario, on), seed)[1] for _ in range(2))
    with op_by_op():
        _, plain = _run(lambda: Graphed(scenario, on), seed)
    side, graph = _run(lambda: Graphed(scenario, on), seed)
    assert isinstance(side, Graphed)
    repeats = differing(eager, again) == ""
    statuses = side.statuses().items()
    refused = [f"{what}: {s}" for what, s in statuses if not s.startswith("captured")]
    wrong = [*refused]
    bits = differing(graph, plain)
    if bits:
        wrong.append(
            f"not the bits of op by op: {bits}{'' if repeats else ' (nor is eager its own)'}"
        )
    wrong += infinite(eager, scenario)
    bound = BOUNDS.get(scenario.amp or scenario.dtype, sys.float_info.max)  # never infinity
    largest, where = farthest(graph, eager)
    if largest > bound:
        wrong.append(f"off by {largest:.1e} in {where}")
    of_losses = max(map(error, graph.losses, eager.losses))
    if of_losses > LOSSES:
        wrong.append(f"a loss is off by {of_losses:.1e}")
    wrong += unequal(graph, eager)
    side.close()
    return {
        "outcome": "; ".join(wrong) or "ok",
        "refused": refused,
        "error": min(largest, 1e300),
        "equal_losses": sum(map(torch.equal, graph.losses, eager.losses)),
        "steps": STEPS,
        "eager_repeats": repeats,
        "op_by_op_bits": not bits,
    }


def _run(make: Callable[[], Side], seed: int) -> tuple[Side, Trace]:
    torch.manual_seed(seed)
    side = make()
    return side, run(side, seed)


def differing(one: Trace, other: Trace) -> str:
    """The first tensor whose bits differ; empty where none does."""
    for what, left, right in _pairs(one, other):
        same = torch.equal(left.isnan(), right.isnan())
        if not same or not torch.equal(left.nan_to_num(), right.nan_to_num()):
            return what
    return "the generator" if not torch.equal(one.random, other.random) else ""


def infinite(trace: Trace, scenario: Scenario) -> list[str]:
    """Losses and states that are not finite, and compare nothing; losses of an overflow are not."""
    overflows = OVERFLOWS if scenario.overflow else ()
    losses = {f"the loss of step {n}": loss for n, loss in enumerate(trace.losses)}
    held = {n: t for n, t in {**losses, **trace.states}.items() if t.is_floating_point()}
    excused = {f"the loss of step {n}" for n in overflows}
    return [
        f"{n} is not finite" for n, t in held.items() if n not in excused and not t.isfinite().all()
    ]


def farthest(one: Trace, other: Trace) -> tuple[float, str]:
    """The largest relative error of a tensor, and which that is."""
    found = [(error(left, right), what) for what, left, right in _pairs(one, other)]
    return max(found, key=lambda pair: pair[0])


def unequal(one: Trace, other: Trace) -> list[str]:
    """Settings, names of states and draws that are not the same."""
    wrong = [
        f"{name} is {one.settings.get(name)}, not {value}"
        for name, value in other.settings.items()
        if one.settings.get(name) != value
    ]
    names = one.states.keys() ^ other.states.keys()
    wrong += [f"{name} is on one side alone" for name in sorted(names)]
    if not torch.equal(one.random, other.random):
        wrong.append("another state of the generator")
    return wrong


def _pairs(one: Trace, other: Trace) -> list[tuple[str, Tensor, Tensor]]:
    losses = zip(one.losses, other.losses, strict=True)
    evaluations = zip(one.evaluations, other.evaluations, strict=True)
    return [
        *((f"the loss of step {n}", a, b) for n, (a, b) in enumerate(losses)),
        *((f"evaluation {n}", a, b) for n, (a, b) in enumerate(evaluations)),
        *((n, t, other.states[n]) for n, t in one.states.items() if n in other.states),
    ]


def _step(side: Side, seed: int) -> dict[str, Any]:
    """Time, memory and kernels of one step, on a batch of four times the rows."""
    on = side.on
    x, y = next(iter(side.scenario.batches(on, seed)))
    x, y = (torch.cat([t] * 4) for t in (x, y))

    def step() -> Tensor:
        return side.train(x, y)

    times = 1 if on.dry else 20
    for _ in range(8):
        step()
    seconds = min(on.clock().seconds(step, times) / times for _ in range(5))
    peak = on.peak_bytes(step)
    found = on.activity(step, times)  # last: a profiler that has been there may slow what follows
    return {
        "milliseconds": 1e3 * seconds,
        "kernels": found and found.kernels,
        "busy": found and found.busy,
        "gap_microseconds": found and 1e6 * found.gap,
        "peak_mib": peak / MIB,
        "pool_mib": on.pool_bytes() / MIB,
    }


if __name__ == "__main__":
    main()
