"""Trainers beside each other: the same run in the Trainer's own loop and in `GraphTrainer`'s."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

pytest.importorskip("transformers")

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.integrations.comparing import differences
from torchgraph.integrations.transformers import GraphTrainer, GraphTrainerMixin

__all__ = ["PreTrainedTokenizerFast", "Trainer"]

VOCABULARY = 32
QUIET = [
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Rows of random token ids, each from its own seed; of several lengths where asked."""

    def __init__(self, rows: int = 32, length: int = 8, ragged: bool = False) -> None:
        self.rows, self.length, self.ragged = rows, length, ragged

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = self.length - (index % 3 if self.ragged else 0)
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(VOCABULARY, (length,), generator=generator)
        return {"input_ids": ids, "labels": ids.clone()}


class Watching(TrainerCallback):
    """Keeps what a callback sees of parameters and gradients at one event."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def look(self, model: Any) -> None:
        for parameter in model.parameters():
            grad = parameter.grad
            self.seen.append((parameter.detach().clone(), None if grad is None else grad.clone()))


class Net(nn.Module):
    """Dropout, a weight that is used twice, one that is not, and a count of its calls."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__()
        self.table, self.middle = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.unused, self.drop = nn.Linear(2, 2), nn.Dropout(0.1)
        self.calls = 0

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        hidden = torch.tanh(self.middle(self.drop(self.table(input_ids))))
        logits = nn.functional.linear(hidden, self.table.weight)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def gpt2(**kwargs: Any) -> GPT2LMHeadModel:
    """One layer, with dropout and tied weights."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16}
    sizes |= {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**(sizes | kwargs)))


def arguments(folder: Path, **kwargs: Any) -> TrainingArguments:
    """What each run has in common."""
    common: dict[str, Any] = {"output_dir": str(folder), "use_cpu": True, "report_to": []}
    common |= {"disable_tqdm": True, "per_device_train_batch_size": 4, "save_strategy": "no"}
    common |= {"logging_steps": 1, "max_steps": 30, "learning_rate": 1e-3}
    return TrainingArguments(**(common | kwargs))


def graphed(base: type[Any]) -> type[Any]:
    """A Trainer with the mixin before it."""
    return GraphTrainer if base is Trainer else type("Graphed", (GraphTrainerMixin, base), {})


def state(trainer: Any) -> dict[str, Any]:
    """All that a training has made, but the time that it took."""
    model = trainer.model
    return {
        "log": trainer.state.log_history,
        "calls": getattr(model, "calls", 0),
        "state": (trainer.state.global_step, trainer.state.epoch, trainer.state.total_flos),
        "model": model.state_dict(),
        "gradients": [parameter.grad for parameter in model.parameters()],
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "random": torch.get_rng_state(),
    }


def checkpoint(folder: Path) -> dict[str, Any]:
    """What lies in the files of a checkpoint that torch has written."""
    files = sorted([*folder.glob("*.pt"), *folder.glob("*.pth")])
    assert files
    return {file.name: torch.load(file, weights_only=False) for file in files}


def beside(run: Callable[[type[Any]], Any], base: type[Any] = Trainer) -> None:
    """``run`` a Trainer's class and its graphed one; what they return is the same, bit by bit."""
    found = []
    for kind in (base, graphed(base)):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        found.append(run(kind))
    apart = differences(*found)
    assert [path for path in apart if "runtime" not in path and "per_second" not in path] == []
