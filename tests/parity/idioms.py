"""What an idiom is: a small module written as third-party libraries write theirs, and its steps.

The families lie in ``idioms_*.py``. Each module asks of PyTorch what a library asks of it in eager:
values of data, caches filled in ``forward``, states outside of ``state_dict``, objects that pytree
does not know. Nothing in them knows that a Graph exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

Batch = tuple[Any, ...]


def itself(model: nn.Module, *batch: Any) -> torch.Tensor:
    """The model returns its loss."""
    loss: torch.Tensor = model(*batch)
    return loss


def squares(model: nn.Module, *batch: Any) -> torch.Tensor:
    """The mean square of what the model returns."""
    return model(*batch).square().mean()


def error(model: nn.Module, *batch: Any) -> torch.Tensor:
    """The mean squared error to the last tensor of the batch."""
    *inputs, target = batch
    return torch.nn.functional.mse_loss(model(*inputs), target)


def entropy(model: nn.Module, *batch: Any) -> torch.Tensor:
    """The cross entropy with the last tensor of the batch."""
    *inputs, target = batch
    return torch.nn.functional.cross_entropy(model(*inputs), target)


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def no_more(model: nn.Module) -> Sequence[torch.Tensor]:
    return ()


@dataclass(frozen=True)
class Idiom:
    """One row: what to train, on what, how."""

    name: str
    model: Callable[[], nn.Module]
    batches: Callable[[], list[Batch]]
    loss: Callable[..., torch.Tensor] = squares
    """``loss(model, *batch)``."""
    optimizer: Callable[[nn.Module], Optimizer] | None = adam
    """None: the model is only evaluated."""
    outside: Callable[[nn.Module], Sequence[torch.Tensor]] = no_more
    """Tensors that the steps move and that ``model.state_dict()`` does not hold."""
    writes: bool = False
    """Sets attributes in each step that no later step reads; a warning about them may come."""


def each(make: Callable[[int], Batch], steps: int = 3) -> Callable[[], list[Batch]]:
    """One batch a step, made from the number of the step."""
    return lambda: [make(step) for step in range(steps)]


def normal(*shapes: tuple[int, ...], steps: int = 3) -> Callable[[], list[Batch]]:
    """Normal draws of these shapes, others in each step."""
    return each(lambda _: tuple(torch.randn(shape) for shape in shapes), steps)


def labelled(shape: tuple[int, ...], classes: int, steps: int = 3) -> Callable[[], list[Batch]]:
    """Normal draws and a class for each row."""
    return each(lambda _: (torch.randn(shape), torch.randint(classes, shape[:1])), steps)
