"""The loop that accelerate documents, which `benchmarks.trainers` times."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

import torchgraph as tg

from .contenders import LR
from .trainers_cases import BACKENDS, COMPILE, ENDLESS, MOST_NORM, Ready, work_of


def train(size: str, contender: str, ready: Ready) -> None:
    """Train until the pace ends it."""
    work, loader = work_of(size)
    accelerator: Any = Accelerator(
        cpu=True, dynamo_backend="inductor" if contender == COMPILE else None
    )
    optimizer = AdamW(work.model.parameters(), lr=LR)
    scheduler = CosineAnnealingLR(optimizer, ENDLESS)
    model, optimizer, scheduler, loader = accelerator.prepare(
        work.model, optimizer, scheduler, loader
    )

    def body(x: Tensor, y: Tensor) -> Tensor:
        with accelerator.accumulate(model):
            loss = work.loss_fn(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), MOST_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    step, graph = body, None
    if contender in BACKENDS:
        step = graph = tg.step(body)
        graph.config.set_backend(BACKENDS[contender])
    begin = ready(work.model, graph)
    for _ in range(ENDLESS):
        for x, y in loader:
            begin()
            step(x, y)
