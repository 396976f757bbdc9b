"""What the contract tests share: a small model with every kind of state, a batch, a Graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

import torchgraph as tg
from torchgraph.counters import counters


class Net(nn.Module):
    """Parameters, buffers, random draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.norm(self.first(x)))))


class Train(tg.Graph):
    """One training step of a model: mean of squares."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None
    ) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        loss = self.model(*args, **kwargs).square().mean()
        loss.backward()
        return loss


class Eval(tg.Graph):
    """Runs a model, and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class Function(tg.Graph):
    """A Graph around a function and any modules, with or without optimizers."""

    def __init__(
        self, function: Callable[..., Any], *optimizers: Any, **modules: nn.Module
    ) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)
        for optimizer in optimizers:
            self.add_optimizer(optimizer)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def again(graph: tg.Graph, *args: torch.Tensor) -> None:
    """Call a graph until its step is refused: some refusals come when recordings are compared."""
    for _ in range(8):
        graph(*args)


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """AdamW with a rate that changes something in a few steps."""
    return torch.optim.AdamW(model.parameters(), lr=0.05, **options)


def made(seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    """A model and its optimizer; equal ones for equal seeds."""
    torch.manual_seed(seed)
    model = Net()
    return model, adam(model)


def twins(
    make: Callable[[], nn.Module], optimizer: Callable[[nn.Module], Any] = adam
) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """Two equal models and their optimizers: a Graph's, and eager's."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = make()
        found.append((model, optimizer(model)))
    return found


def squared(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What `Train` does in ``build``."""
    loss = model(x).square().mean()
    loss.backward()
    return loss


class Compared(NamedTuple):
    """What `beside_eager` has run."""

    graph: tg.Graph
    model: nn.Module
    recorded: int
    replayed: int


def beside_eager(
    build: Callable[..., torch.Tensor] = squared,
    make: Callable[[], nn.Module] = Net,
    *,
    batches: Sequence[torch.Tensor] | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam,
    before: Callable[[int, nn.Module, torch.optim.Optimizer], Any] = lambda *_: None,
    around: Callable[[int], AbstractContextManager[Any]] = lambda _: nullcontext(),
    plain: Callable[..., torch.Tensor] | None = None,
    fallback: str = "error",
) -> Compared:
    """Train a model by a Graph, and its twin in eager: results and all that is left, bitwise.

    Args:
        build: the forward and backward of a model and a batch.
        make: gives the model; equal ones for equal seeds.
        batches: of each call; six unless they are given.
        before: called before each call, with its number.
        around: what surrounds each call, by its number.
        plain: what eager runs in place of ``build``.
        fallback: as `config.set_fallback` takes it.
    """
    (model, mine), (twin, other) = twins(make, optimizer)
    graph = Function(lambda x: build(model, x), mine, model=model)
    graph.config.set_fallback(fallback)
    given = data(6) if batches is None else batches

    def by_eager(x: torch.Tensor) -> torch.Tensor:
        loss = (plain or build)(twin, x)
        other.step()
        other.zero_grad()
        return loss

    def run(step: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        torch.manual_seed(1)
        found = []
        for number, x in enumerate(given):
            before(number, model, optimizer)
            with around(number):
                found.append(step(x.detach().clone()).detach())
        return [found, snapshot(model, optimizer)]

    recorded, replayed = counters.captures, counters.replays
    got = run(graph, model, mine)
    recorded, replayed = counters.captures - recorded, counters.replays - replayed
    assert same(got, run(by_eager, twin, other))
    return Compared(graph, model, recorded, replayed)


def in_turn(changes: Sequence[Callable[[nn.Module, Any], Callable[[], Any]]]) -> Callable[..., Any]:
    """``before`` of `beside_eager`: from call 4 on each is made for three calls out of six.

    Args:
        changes: are given the model and the optimizer, and give what takes them back.
    """
    held: list[Callable[[], Any]] = []

    def before(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        turn, place = divmod(number - 4, 6)
        if place == 3 and held:
            held.pop()()
        elif place == 0 and turn < len(changes):
            held.append(changes[turn](model, optimizer))

    return before


def data(count: int = 1, rows: int = 5) -> list[torch.Tensor]:
    """Batches, the same each time."""
    source = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 4, generator=source) for _ in range(count)]


def eager(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    """What `Train` does, eager."""
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def snapshot(*owners: Any) -> list[Any]:
    """Everything that a step may change, copied: compare two of them with `same`."""
    found: list[Any] = [torch.get_rng_state()]
    for owner in owners:
        found.append(_copied(owner.state_dict()))
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


def same(left: Any, right: Any) -> bool:
    """Bitwise, through dicts and lists, keys in the same order."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and left.equal(right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
