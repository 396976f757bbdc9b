"""Plays of which it is said, too, how many calls programs serve and what warnings tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

import torchgraph as tg
from tests.hostile import kit
from tests.hostile.plays import Play
from torchgraph.counters import counters
from torchgraph.errors import GraphWarning


class Served(NamedTuple):
    """A play, a form, and what is expected of it beside eager's results and states."""

    make: Callable[[], Play]
    served: int | None = None
    """The calls that programs serve; None stands for any number."""
    recorded: int | None = None
    """The programs that are captured; None stands for any number."""
    says: str | None = ""
    """A pattern of the only warning; empty where there is none, None where any may come."""
    form: kit.Form = kit.step
    fallback: str = "error"
    tolerance: float = 0.0
    configure: Callable[[Any], Any] = lambda _: None
    """What is set on the Graph before its first call."""

    def check(self) -> kit.Run:
        """What the form has done; raises AssertionError where it differs from what is expected."""
        expected = kit.perform(self.make, kit.eager)
        captures = counters.captures
        found = kit.perform(self.make, self._made)
        kit.check_same(expected, found, self.tolerance)
        for one, other in zip(expected.outcomes, found.outcomes, strict=True):
            assert str(one.raised) == str(other.raised)
        counted = found.served, counters.captures - captures
        for wanted, got in zip((self.served, self.recorded), counted, strict=True):
            assert wanted in (None, got), f"(served, recorded) are {counted}"
        self._check_words([str(one) for one in found.told if isinstance(one, GraphWarning)])
        return found

    def _made(self, play: Play) -> Any:
        made = partial(self.form, fallback=self.fallback)(play)
        self.configure(made)
        return made

    def _check_words(self, told: list[str]) -> None:
        if self.says:
            assert len(told) == 1, told
            assert re.search(self.says, told[0]), told[0]
        assert self.says is None or self.says or not told, told


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


def updating(play: Play, fallback: str = "error") -> tg.Graph:
    """A Graph that does by itself what an `Update` does after its computation."""
    step: Any = play.step

    class Updating(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = step.model
            self.add_optimizer(step.optimizer)

        def build(self, *args: Any) -> Any:
            return step.build(*args)

    made = Updating()
    made.config.set_fallback(fallback)
    return made


class Table(dict[str, Served]):
    """Rows by name; what they have in common is given once."""

    def __init__(self, **common: Any) -> None:
        super().__init__()
        self._common = common

    def __call__(self, **expected: Any) -> Callable[[Callable[[], Play]], Callable[[], Play]]:
        """Decorator of the function that makes the play."""

        def put(make: Callable[[], Play]) -> Callable[[], Play]:
            self.rows({make.__name__: make}, **expected)
            return make

        return put

    def rows(self, plays: Mapping[str, Callable[[], Play]], **expected: Any) -> None:
        """Plays of which the same is expected."""
        for name, make in plays.items():
            self[name] = Served(make, **{**self._common, **expected})


def no_looks(graph: Any) -> None:
    """Calls that a program serves are run by it alone."""
    graph.config.set_look_again("off")
