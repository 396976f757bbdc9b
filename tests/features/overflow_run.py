"""A float16 training run that writes down each loss and scale, and goes on from its checkpoint.

    python -m tests.features.overflow_run FOLDER STEPS

Its scale begins too high, backs off, and grows until it overflows again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn, optim

import torchgraph as tg

EVERY = 20
"""Steps between two checkpoints."""


def model() -> nn.Module:
    """Small, with random draws."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def optimizer(of: nn.Module) -> optim.Optimizer:
    """Its state and its step count matter."""
    return optim.AdamW(of.parameters(), lr=0.01)


def scaler() -> torch.amp.GradScaler:
    """Far too high for float16 at first."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=9)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a step; touches no global generator."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator)
    return x, torch.randint(0, 3, (16,), generator=generator)


class Train(tg.Graph):
    """The step."""

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.scaler = scaler()
        self.add_optimizer(optimizer, lr_sch=optim.lr_scheduler.StepLR(optimizer, 50, gamma=0.7))
        self.set_grad_scaler(self.scaler)
        self.config.set_backend("aten")
        self.config.enable_amp(dtype=torch.float16)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def line(loss: torch.Tensor, scale: float) -> str:
    """Both to the last bit."""
    return f"{loss.item().hex()} {scale.hex()}\n"


def main(folder: Path, steps: int) -> None:
    """Run, or go on."""
    torch.set_num_threads(1)
    own = model()
    graph = Train(own, optimizer(own))
    log, checkpoint = folder / "log", folder / "checkpoint"
    torch.manual_seed(1)
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        graph.load_state_dict(state)
        first = state["_train"]["step"]
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(lines[:first]))
    with log.open("a") as file:
        for step in range(first, steps):
            file.write(line(graph(*batch(step)), graph.scaler.get_scale()))
            file.flush()
            if (step + 1) % EVERY == 0:
                torch.save(graph.state_dict(), folder / "new")
                os.replace(folder / "new", checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
