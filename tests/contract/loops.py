"""Training loops run twice, in eager and by ``tg.step``, and compared after every call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

import torchgraph as tg
from tests.support import same_bits
from torchgraph.counters import counters

Batch = tuple[Any, ...]


@dataclass
class Loop:
    """One run of a loop: what is called, what it may change, and what happens between calls."""

    step: Callable[..., Any]
    owners: Sequence[Any]
    """Modules, optimizers, schedulers, scalers, tensors, containers; functions that give them."""
    between: Mapping[int, Callable[[], Any]] = field(default_factory=dict)
    """By the number of a call, from 0, what the loop does before it."""


Make = Callable[[], Loop]


def assert_as_eager(
    make: Make,
    batches: Callable[[], Sequence[Batch]],
    replayed: int,
    *,
    compare: Callable[[Any, Any], bool] | None = None,
    configure: Callable[[tg.Graph], Any] = lambda _: None,
) -> tg.Graph:
    """After each call all has eager's bits; of the calls programs serve ``replayed``.

    Args:
        make: the loop, anew; equal ones for equal seeds.
        batches: the arguments of each call, anew: the step may write them.
        compare: two snapshots, where bits are not promised.
    """
    loop, given = _made(make, batches)
    expected = [_after(loop, number, batch) for number, batch in enumerate(given)]
    loop, given = _made(make, batches)
    graph = loop.step = tg.step(loop.step)
    configure(graph)
    before = counters.replays
    for number, batch in enumerate(given):
        found = _after(loop, number, batch)
        differing = _first_difference(expected[number], found, compare or _same)
        assert not differing, f"call {number}: {differing}"
    served = counters.replays - before
    assert served == replayed, f"programs served {served} calls"
    return graph


def _made(make: Make, batches: Callable[[], Sequence[Batch]]) -> tuple[Loop, Sequence[Batch]]:
    torch.manual_seed(0)
    loop = make()
    torch.manual_seed(1)
    given = batches()
    torch.manual_seed(2)
    return loop, given


def _after(loop: Loop, number: int, batch: Batch) -> dict[str, Any]:
    loop.between.get(number, lambda: None)()
    returned = loop.step(*batch)
    found = {"random state": torch.get_rng_state(), "result": snapshot(returned)}
    found.update({f"argument {n}": snapshot(value) for n, value in enumerate(batch)})
    for position, owner in enumerate(loop.owners):
        found[f"owner {position}"] = snapshot(owner, with_grad=True)
    return found


def snapshot(value: Any, *, with_grad: bool = False) -> Any:
    """A copy of everything in it that a step may change."""
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone(memory_format=torch.preserve_format)
        grad = None if not (with_grad and value.is_leaf) else value.grad
        return (copied, snapshot(grad)) if with_grad else copied
    if isinstance(value, nn.Module):
        tensors = dict([*value.named_parameters(), *value.named_buffers()])
        modes = {f"{name} training": m.training for name, m in value.named_modules()}
        return {**snapshot(tensors, with_grad=True), **modes}
    if isinstance(value, Optimizer):
        return snapshot(_numbered(value.state_dict()))
    if hasattr(value, "state_dict"):
        return snapshot(value.state_dict())
    return _of_plain(value, with_grad)


def _of_plain(value: Any, with_grad: bool) -> Any:
    if isinstance(value, dict):
        return {str(key): snapshot(item, with_grad=with_grad) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [type(value).__name__, *(snapshot(item, with_grad=with_grad) for item in value)]
    if callable(value):
        return snapshot(value(), with_grad=with_grad) if _is_users(value) else None
    return value


def _is_users(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("tests")


def _numbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """The order in which optimizer state was made counts for nothing."""
    return {**state, "state": dict(sorted(state["state"].items()))}


def _same(left: Any, right: Any) -> bool:
    return same_bits(left, right) or repr(left) == repr(right) == "nan"


def _first_difference(left: Any, right: Any, same: Callable[[Any, Any], bool]) -> str:
    """The path to the first values that differ, and both; empty where none do."""
    if type(left) is not type(right):
        return f": {left} and {right}"
    if isinstance(left, dict):
        if list(left) != list(right):
            return f" has {list(left)} and {list(right)}"
        return _of_items(((key, left[key], right[key]) for key in left), same)
    if isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return f" has {len(left)} and {len(right)} items"
        return _of_items(zip(range(len(left)), left, right, strict=True), same)
    return "" if same(left, right) else f": {left} and {right}"


def _of_items(items: Iterable[tuple[Any, Any, Any]], same: Callable[[Any, Any], bool]) -> str:
    for key, left, right in items:
        if found := _first_difference(left, right, same):
            return f"[{key}]{found}"
    return ""


# --- what the loops are made of -------------------------------------------------------------------


def in_eager(graph: tg.Graph) -> None:
    """Let eager do what no program can hold."""
    graph.config.set_fallback("eager")


def falls_back(function: Callable[..., Any]) -> Any:
    """A step that eager runs where no program can hold it."""
    step = tg.step(function)
    in_eager(step)
    return step


def mlp(inputs: int = 4, outputs: int = 1) -> nn.Sequential:
    """A small model."""
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


sgd = partial(torch.optim.SGD, lr=0.1)
adam = partial(torch.optim.Adam, lr=1e-2)


def supervised(
    optimizer: Callable[[Any], Optimizer] = sgd,
    model: Callable[[], nn.Module] = mlp,
    *,
    zero_grad: str = "first",
    to_none: bool = True,
    clip: Callable[[Any], Any] | None = None,
    scheduler: Callable[[Optimizer], Any] | None = None,
    then: Callable[[nn.Module, torch.Tensor], Any] | None = None,
    owners: Sequence[Any] = (),
    between: Mapping[int, Callable[[nn.Module, Optimizer], Any]] | None = None,
) -> Loop:
    """The loop that every tutorial shows.

    Args:
        zero_grad: where gradients are cleared: "first", "last" or "never".
        clip: is given the parameters after the backward pass.
        then: is given the model and the loss after the optimizer's step.
        owners: what ``then`` may change.
        between: by the number of a call, what is done to model and optimizer before it.
    """
    net = model()
    optim = optimizer(net.parameters())
    schedule = scheduler(optim) if scheduler else None

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if zero_grad == "first":
            optim.zero_grad(set_to_none=to_none)
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        if clip:
            clip(net.parameters())
        optim.step()
        if schedule:
            schedule.step()
        if then:
            then(net, loss)
        if zero_grad == "last":
            optim.zero_grad(set_to_none=to_none)
        return loss

    owned = [net, optim, *([schedule] if schedule else []), *owners]
    changes = {number: partial(act, net, optim) for number, act in (between or {}).items()}
    return Loop(step, owned, changes)


def pairs(count: int, rows: int = 3) -> Callable[[], list[Batch]]:
    """Batches of four features and one target."""
    return lambda: [(torch.randn(rows, 4), torch.randn(rows, 1)) for _ in range(count)]
