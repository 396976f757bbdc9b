"""What `benchmarks.trainers` has in common with the loops that it times: names, data, the pace."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchgraph as tg

from .cases import CASES
from .contenders import EAGER
from .start import AUTO
from .table import FIRST
from .table_child import say
from .work import Work

COMPILE, ATEN = "torch.compile", "torchgraph aten"
CONTENDERS = (EAGER, ATEN, AUTO, COMPILE)
"""The framework's loop as it is, with torchgraph, and with the framework's own switch."""
BACKENDS = {ATEN: "aten", AUTO: "auto"}
FRAMEWORKS = ("graphed", "accelerate", "lightning", "transformers")
"""``graphed`` is a plain loop whose optimizer is a `torchgraph.optim.Graphed`."""
SIZES = {"small": CASES["mlp"], "mid": CASES["gpt"]}
"""Of all but ``transformers``, whose models are GPT-2's."""
ROWS = tuple(f"{framework} {size}" for size in SIZES for framework in FRAMEWORKS)
SAMPLES = 4096
MOST_NORM = 1.0
"""To which each loop clips the norm of its gradients."""
ENDLESS = 10**6
"""Steps, or epochs, that no loop comes to."""

Begin = Callable[[], None]
"""Called where a step begins."""
Ready = Callable[[nn.Module, tg.Graph | None], Begin]
"""Called with the model and the Graph, just before the loop begins."""


class Ended(Exception):
    """The loop has been timed, and ends here."""


class Samples(Dataset[Any]):
    """The rows of one batch, again and again."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self._rows[index % len(self._rows)]


def work_of(size: str) -> tuple[Work, DataLoader[Any]]:
    """A model with its loss, and its data."""
    work = SIZES[size].on(torch.device("cpu"))
    rows = list(zip(work.x, work.y, strict=True))
    return work, DataLoader(Samples(rows), batch_size=len(rows))


def ready(model: nn.Module, graph: tg.Graph | None) -> Begin:
    """The pace of a child: `_paced`, one step further at each call."""
    steps = _paced(model, graph)
    return lambda: next(steps)


def _paced(model: nn.Module, graph: tg.Graph | None) -> Iterator[None]:
    """Answer each line of stdin from within a loop that is not ours; a step for each item.

    The first answer comes after `FIRST` steps; ``run SECONDS`` times steps, at least so long by
    both clocks; ``end`` tells how the calls have run, and ends the loop.

    Raises:
        Ended: at the end.
    """
    before, first = _clocks(), (0.0, 0.0)
    for number in range(FIRST):
        yield
        first = first if number else _since(before)
    wall, cpu = _since(before)
    say(first=first, wall=wall, cpu=cpu, **_state(model))
    for line in sys.stdin:
        verb, _, least = line.strip().partition(" ")
        if verb == "end":
            break
        before, taken, count = _clocks(), (0.0, 0.0), 0
        while min(taken) < float(least):
            yield
            count, taken = count + 1, _since(before)
        say(wall=taken[0] / count, cpu=taken[1] / count, steps=count)
    say(calls=_calls(graph))
    raise Ended


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(before: tuple[float, float]) -> tuple[float, float]:
    """Seconds on the wall, and of all threads of this process."""
    wall, cpu = _clocks()
    return wall - before[0], cpu - before[1]


def _state(model: nn.Module) -> dict[str, Any]:
    """The parameters as they are: their bits, their norm, how many they are."""
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    bits = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    return {"bits": bits, "norm": flat.norm().item(), "parameters": flat.numel()}


def _calls(graph: tg.Graph | None) -> dict[str, Any] | None:
    """How the calls of a Graph have run, and from which on they are to run compiled code."""
    if graph is None:
        return None
    report = graph.report()
    return {
        "programs": report.calls.programs,
        "recorded": report.calls.recorded,
        "eager": sum(one.count for one in report.calls.eager),
        "why": [
            one.why.partition(" (at ")[0] for one in report.calls.eager
        ],  # no path of a machine
        "plan": report.backend_plan,
    }
