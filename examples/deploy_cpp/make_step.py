"""Exports the step of an online-learning MLP, and the batches that it learns from.

    python -m examples.deploy_cpp.make_step FOLDER

Writes ``step.pt2`` (the step, compiled, with its states), ``batches.bin`` and ``losses.txt`` (what
Python finds for the same steps) into the folder.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchgraph as tg

ROWS, FEATURES = 16, 8


class OnlineStep(tg.Graph):
    """One step of a regression."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def batches(steps: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """A stream whose target is a fixed function of the features."""
    source = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(steps):
        x = torch.randn(ROWS, FEATURES, generator=source)
        found.append((x, (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3]))
    return found


def make_step(optimizer: str) -> OnlineStep:
    """A fresh model with its optimizer, of which one step has run: its states are there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    if optimizer == "sgd":
        return OnlineStep(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    return OnlineStep(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Export the step; return the losses of the steps after it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    args = parser.parse_args(argv)

    args.folder.mkdir(parents=True, exist_ok=True)
    step = make_step(args.optimizer)
    for batch in batches(2, seed=1):
        step(*batch)
    tg.export(step, args.folder / "step.pt2", "aoti")

    stream = batches(args.steps, seed=2)
    with (args.folder / "batches.bin").open("wb") as file:
        for x, y in stream:
            file.write(x.numpy().tobytes() + y.numpy().tobytes())
    losses = [step(*batch).item() for batch in stream]
    (args.folder / "losses.txt").write_text("".join(f"{loss:.9g}\n" for loss in losses))
    print(f"the first loss is {losses[0]:.4f}, the last {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
