"""Forms of a play: callables that run its step by ``tg.step`` or as the `build` of a Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import torchgraph as tg
from tests.cases.plays import Play


def step(play: Play) -> Any:
    """By ``tg.step``."""
    return tg.step(play.step)


def compiled(play: Play) -> Any:
    """By ``tg.step``, and by Inductor from the first program on."""
    made = step(play)
    made.config.set_backend("inductor")
    return made


def graph(play: Play) -> tg.Graph:
    """As the `build` of a Graph that holds the modules."""

    class Played(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            for number, module in enumerate(play.watched):
                if isinstance(module, nn.Module):
                    setattr(self, f"module{number}", module)

        def build(self, *args: Any) -> Any:
            return play.step(*args)

    return Played()


class Update(NamedTuple):
    """A step that computes, and then updates a model."""

    build: Callable[..., Any]
    """The forward and the backward pass."""
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __call__(self, *args: Any) -> Any:
        found = self.build(*args)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found


def updating(play: Play) -> tg.Graph:
    """A Graph that does by itself what an `Update` does after its computation."""
    step: Any = play.step

    class Updating(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = step.model
            self.add_optimizer(step.optimizer)

        def build(self, *args: Any) -> Any:
            return step.build(*args)

    return Updating()


FORMS: dict[str, Callable[[Play], Any]] = {
    "step": step,
    "compiled": compiled,
    "graph": graph,
    "updating": updating,
}


def no_looks(graph: Any) -> None:
    """Calls that a program serves are run by it alone."""
    graph.config.set_look_again("off")
