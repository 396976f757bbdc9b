"""A plain loop, which `benchmarks.trainers` times: only its optimizer is a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import torchgraph as tg

from .contenders import LR
from .trainers_cases import BACKENDS, COMPILE, ENDLESS, MOST_NORM, Ready, work_of


def train(size: str, contender: str, ready: Ready) -> None:
    """Train until the pace ends it; `torch.compile` has clipping and the optimizer's step."""
    work, loader = work_of(size)
    parameters = list(work.model.parameters())
    optimizer = AdamW(parameters, lr=LR)

    def plain() -> None:
        clip_grad_norm_(parameters, MOST_NORM)
        optimizer.step()

    update: Callable[[], Any] = plain
    graph = None
    if contender == COMPILE:
        update = torch.compile(plain)
    elif contender in BACKENDS:
        graphed = tg.optim.Graphed(optimizer, clip_grad_norm=MOST_NORM)
        graphed.graph.config.set_backend(BACKENDS[contender])
        update, graph = graphed.step, graphed.graph
    begin = ready(work.model, graph)
    for _ in range(ENDLESS):
        for x, y in loader:
            begin()
            optimizer.zero_grad()
            work.loss_fn(work.model(x), y).backward()
            update()
