"""An index out of range in a replay: the device asserts, and eager's error has to come out.

    python -m tests.gpu.asserts eager|graph [--dry]

In a process of its own, which ends with it: after an assert a GPU takes nothing more from there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import torchgraph as tg

from . import job
from .machine import Machine, machine

GOOD_STEPS = 8
WORDS = 50


def main() -> None:
    """One row: the class and the words of what was raised, and in which call."""
    args = job.arguments(__doc__, "kind", kind=("eager", "graph"))
    torch.manual_seed(args.seed)
    with machine(dry=args.dry) as on:
        step = _step(args.kind, on)
        tokens = torch.randint(WORDS, (4, 7), device=on.device)
        for _ in range(GOOD_STEPS):
            step(tokens)
        on.wait()
        status = step.report().cuda_graph if isinstance(step, tg.Graph) else "captured"
        found = _raised(step, tokens + WORDS, on)
        if not status.startswith("captured"):
            found["outcome"] = f"no CUDA Graph: {status.splitlines()[0]}"
        job.row(args.kind, **found)
    sys.stdout.flush()
    os._exit(0)  # what would be freed lies on a GPU that answers nothing any more


def _step(kind: str, on: Machine) -> Callable[[Tensor], Tensor]:
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)).to(on.device)
    optimizer = SGD(model.parameters(), lr=0.1)

    def body(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return body if kind == "eager" else tg.step(body)


def _raised(step: Callable[[Tensor], Tensor], tokens: Tensor, on: Machine) -> dict[str, str]:
    """Of the call with the index, or of the first wait behind it."""
    place = "call"
    try:
        step(tokens)
        place = "wait"
        on.wait()
    except Exception as error:  # of any class: which one is the question
        name = type(error).__name__
        bases = [base.__name__ for base in type(error).__mro__[1:-3]]
        return {
            "raised": name,
            "bases": ", ".join(bases),
            "place": place,
            "said": job.said_by(error),
        }
    return {"outcome": "nothing was raised"}


if __name__ == "__main__":
    main()
