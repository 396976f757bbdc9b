"""Linear regression, as in OneFlow's documentation of `nn.Graph`.

    python -m examples.linear

A third-order polynomial is fitted to y = sin(x). `build()` holds what one training step does;
the optimizer is added once. The first call captures forward, backward and the SGD update as one
program, and every call is one step.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgraph import nn


class LinearTrainGraph(nn.Graph):
    """One step of the regression."""

    def __init__(
        self, model: nn.Module, loss_fn: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        return loss


@dataclass(frozen=True)
class Result:
    """What the regression found: y = bias + c1 x + c2 x^2 + c3 x^3."""

    losses: list[float]
    bias: float
    coefficients: list[float]


def main(argv: Sequence[str] | None = None) -> Result:
    """Fit the polynomial and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    x = torch.linspace(-math.pi, math.pi, 2000)
    y = torch.sin(x)
    xx = x.unsqueeze(-1).pow(torch.tensor([1, 2, 3]))

    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0, 1))
    loss_fn = nn.MSELoss(reduction="sum")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    step = LinearTrainGraph(model, loss_fn, optimizer)

    losses = []
    for t in range(args.steps):
        loss = step(xx, y)
        losses.append(loss.item())
        if t % 100 == 99:
            print(f"step {t + 1:4d}  loss {loss.item():.4f}")

    # The module is the user's own: the graph trained it in place.
    bias = model[0].bias.item()
    coefficients = model[0].weight.flatten().tolist()
    terms = " ".join(f"{c:+.4f} x^{power}" for power, c in enumerate(coefficients, start=1))
    print(f"y = {bias:.4f} {terms}")
    return Result(losses, bias, coefficients)


if __name__ == "__main__":
    main()
