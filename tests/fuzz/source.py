"""A program while it is written: seeded choices, and the lines of its parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Option = TypeVar("Option")

WIDTH = 8  # of all that goes through a model: tensors are (batch, WIDTH) between two blocks


class Source:
    """The parts that the functions of the grammar append their lines to."""

    def __init__(self, seed: int, *, smooth: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.smooth = smooth  # no op that makes much of a last bit: for what is not bitwise
        self.tolerance = 0.0
        self.names = 0
        self.helpers: list[str] = []  # functions and classes before the model
        self.members: list[str] = []  # of the model's __init__
        self.forward: list[str] = []
        self.setup: list[str] = []  # before the step: optimizers, schedulers
        self.step: list[str] = []
        self.form = "step"  # or "graph", or "micro" for one with micro-batches
        self.graphed = ["step = tg.step(step)"]  # makes the step a Graph
        self.config: list[str] = []  # calls on its config
        self.parameters = ["x, y, t"]  # of the step
        self.arguments = ["x, y, t"]  # of its calls
        self.before_call: list[str] = []
        self.events: list[str] = []  # what may come between two calls, besides
        self.watched: dict[str, str] = {
            "x": "x",
            "y": "y",
            "t": "t",
            "model": "model",
        }
        self.cells: list[str] = []  # variables around the step that it assigns to

    def pick(self, options: Sequence[Option]) -> Option:
        return self.random.choice(options)

    def some(self, options: Sequence[Option], most: int) -> list[Option]:
        """At most ``most`` of them, in any order."""
        return self.random.sample(options, self.random.randint(0, min(most, len(options))))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def member(self, module: str) -> str:
        """Assign ``module`` to an attribute of the model, and say how the forward calls it."""
        name = self.name("m")
        self.members.append(f"self.{name} = {module}")
        return f"self.{name}"
