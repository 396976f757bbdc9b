"""Lightning's loop, which `benchmarks.trainers` times by ``on_train_batch_start``."""

from __future__ import annotations

import logging
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import AdamW, Optimizer

import torchgraph as tg

from .contenders import LR
from .trainers_cases import BACKENDS, COMPILE, ENDLESS, MOST_NORM, Begin, Ready, work_of
from .work import Work


class _Module(LightningModule):
    """A model and its loss, which is logged."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.model, self.loss_fn = work.model, work.loss_fn

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.loss_fn(self.model(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Optimizer:
        return AdamW(self.parameters(), lr=LR)


class _Pace(Callback):
    """Begins a step where Lightning does."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin

    def on_train_batch_start(self, *args: Any) -> None:
        self._begin()


def train(size: str, contender: str, ready: Ready) -> None:
    """Train until the pace ends it."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    work, loader = work_of(size)
    module: Any = _Module(work)
    strategy: Any = "auto"
    graph = None
    if contender == COMPILE:  # all of the module is refused, for `self.log` within it
        module.model = torch.compile(module.model)
    elif contender in BACKENDS:
        strategy = tg.integrations.lightning.GraphStrategy()
        graph = strategy.graph
        graph.config.set_backend(BACKENDS[contender])
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_epochs=ENDLESS,
        gradient_clip_val=MOST_NORM,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[_Pace(ready(work.model, graph))],
    )
    trainer.fit(module, loader)
