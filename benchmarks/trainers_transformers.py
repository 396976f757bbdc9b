"""The loop of `transformers.Trainer`, which `benchmarks.trainers` times by ``on_step_begin``."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import torchgraph as tg

from .contenders import LR
from .trainers_cases import BACKENDS, COMPILE, ENDLESS, MOST_NORM, Begin, Ready, Samples
from .work import SEED

VOCABULARY = 96
SIZES = {"small": (1, 32, 16, 4), "mid": (4, 128, 64, 8)}
"""Layers, width, tokens, batch."""


class _Pace(TrainerCallback):
    """Begins a step where the Trainer does."""

    def __init__(self) -> None:
        self.begin: Begin = lambda: None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begin()


def train(size: str, contender: str, ready: Ready) -> None:
    """Train until the pace ends it."""
    layers, width, tokens, batch = SIZES[size]
    torch.manual_seed(SEED)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(VOCABULARY, (batch, tokens))]
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=layers,
            n_embd=width,
            n_head=4,
            n_positions=tokens,
            vocab_size=VOCABULARY,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
    kind: Any = Trainer
    if contender in BACKENDS:
        kind = tg.integrations.transformers.GraphTrainer
    pace = _Pace()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            per_device_train_batch_size=batch,
            max_steps=ENDLESS,
            learning_rate=LR,
            max_grad_norm=MOST_NORM,
            torch_compile=contender == COMPILE,
            dataloader_pin_memory=False,
        )
        trainer = kind(model, arguments, train_dataset=Samples(rows), callbacks=[pace])
        trainer.remove_callback(PrinterCallback)  # stdout has the answers
        graph = getattr(trainer, "graph", None)
        if graph is not None:
            graph.config.set_backend(BACKENDS[contender])
        pace.begin = ready(model, graph)
        trainer.train()
