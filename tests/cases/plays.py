"""Plays, and what they are made of: models, optimizers, loops, arguments."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Calls = Sequence[tuple[Any, ...]]


def pairs(number: int = 9, rows: int = 5) -> Calls:
    """The arguments of so many calls: inputs and targets."""
    return [(torch.randn(rows, 4), torch.randn(rows, 2)) for _ in range(number)]


def singles(number: int = 9, *shape: int) -> Calls:
    """One tensor for each call."""
    return [(torch.randn(shape or (5, 4)),) for _ in range(number)]


@dataclass
class Play:
    """A step, what it is called with, and what happens between the calls."""

    step: Callable[..., Any]
    watched: Any = ()
    """All that the step changes: tensors, modules, optimizers, containers, functions that tell."""
    before: Mapping[int, Callable[[], Any]] = field(default_factory=dict)
    """By the number of a call, from 0, what is done before it. Programs serve from 2, 3 or 4 on."""
    calls: Calls = field(default_factory=pairs)
    around: Callable[[Callable[[], Any]], Any] = lambda call: call()
    """What surrounds each call."""


def net() -> nn.Module:
    """Small, with parameters alone."""
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """With a state."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trains(
    model: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **more: Any,
) -> Play:
    """The usual loop: ``loss(x, y)``, the mean of squares if none is given, is minimized."""
    optimizer = optimizer or sgd(model)
    loss = loss or (lambda x, y: functional.mse_loss(model(x), y))

    def body(x: Any, y: Any) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(x, y)
        value.backward()
        optimizer.step()
        return value

    watched = [model, optimizer, *more.pop("watched", ())]
    return Play(body, watched, **more)


def descent(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], torch.Tensor]:
    """A step that minimizes the mean of squares of what the model gives."""

    def step(x: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """With a rate that counts."""
    return torch.optim.Adam(model.parameters(), lr=0.05)


def by_hand(
    body: Callable[..., Any], model: nn.Module, *optimizers: Any, watched: Any = (), **more: Any
) -> Play:
    """A loop with a body of its own."""
    return Play(body, [model, *optimizers, *watched], **more)


def around_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    after: Callable[[], Any] | None = None,
    before: Callable[[], Any] | None = None,
    *,
    watched: Any = (),
    between: Mapping[int, Callable[[], Any]] | None = None,
    number: int = 9,
) -> Play:
    """A loop that calls ``before()`` after ``backward`` and ``after()`` after the update."""

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        found = before() if before else None
        optimizer.step()
        if after:
            after()
        return loss, found

    return Play(step, [model, optimizer, *watched], between or {}, pairs(number))


def turns(
    step: Callable[..., Any], *, at: int = 6, number: int = 12, watched: Any = (), **more: Any
) -> Play:
    """All values of the arguments are positive, but negative in three calls from ``at`` on."""
    calls = [(torch.rand(5, 4) + 0.1,) for _ in range(number)]
    for (x,) in calls[at : at + 3]:
        x.neg_()
    return Play(step, watched, calls=calls, **more)


def of(
    step: Callable[..., Any],
    give: Callable[[int], tuple[Any, ...]],
    number: int = 10,
    watched: Any = (),
) -> Play:
    """``step`` of what ``give(n)`` gives for each call: a tuple of arguments."""
    return Play(step, watched, calls=[give(n) for n in range(number)])


def base(n: int, *shape: int) -> torch.Tensor:
    """Other values in each call."""
    return torch.randn(shape or (5, 4)) + n


def reads(read: Callable[[], Any], change: Callable[[], Any]) -> Play:
    """``x * read()``; the change comes before call 5."""
    return Play(lambda x: x * read(), before={5: change}, calls=singles(10))


def moves(
    step: Callable[..., Any], *watched: Any, number: int = 14, **between: Callable[[], Any]
) -> Play:
    """``before7=...`` is done before call 7."""
    before = {int(name.removeprefix("before")): change for name, change in between.items()}
    return Play(step, watched, before, singles(number))


def setting(holder: Any, name: str, value: Any) -> Callable[[], None]:
    """What puts a value into an attribute."""
    return lambda: setattr(holder, name, value)


def module_of(source: str) -> types.ModuleType:
    """A module made of text, as a user's own file is."""
    made = types.ModuleType("settings_of_the_user")
    exec(source, vars(made))
    return made
