"""What an idiom is: a small module written as third-party libraries write theirs, and its steps.

The families lie in ``idioms_*.py``. Each module asks of PyTorch what a library asks of it in eager:
values of data, caches filled in ``forward``, states outside of ``state_dict``, objects that pytree
does not know. Nothing in them knows that a Graph exists.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.support import same_bits
from torchgraph.errors import AttributeWriteWarning, NoProgram, ParityError
from torchgraph.testing import Setup, assert_parity, counters

Batch = tuple[Any, ...]


def itself(model: nn.Module, *batch: Any) -> torch.Tensor:
    """The model returns its loss."""
    loss: torch.Tensor = model(*batch)
    return loss


def squares(model: nn.Module, *batch: Any) -> torch.Tensor:
    """The mean square of what the model returns."""
    loss: torch.Tensor = model(*batch).square().mean()
    return loss


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


def by(name: str, **settings: float) -> Callable[[nn.Module], Optimizer]:
    """An optimizer of torch.optim."""
    return lambda model: getattr(torch.optim, name)(model.parameters(), lr=1e-2, **settings)


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
    schedule: Callable[[Optimizer], Any] | None = None
    """The scheduler that each step moves."""
    outside: Callable[[nn.Module], Sequence[torch.Tensor]] = no_more
    """Tensors that the steps move and that ``model.state_dict()`` does not hold."""
    writes: bool = False
    """Sets attributes in each step that no later step reads; a warning about them may come."""
    stays_eager: type[Warning | NoProgram] | None = None
    """What says that no program serves its steps: they are eager's all the same, or refused."""
    ends_eager: type[Warning] | None = None
    """What says that later steps run in eager, after some that a program served."""
    seldom: bool = False
    """Left to `make test-all`: other rows show the same mechanisms."""
    served: tuple[int, int] | None = None
    """The programs that its steps need, and the steps that they serve."""


def each(make: Callable[[int], Batch], steps: int = 3) -> Callable[[], list[Batch]]:
    """One batch a step, made from the number of the step."""
    return lambda: [make(step) for step in range(steps)]


def normal(*shapes: tuple[int, ...], steps: int = 3) -> Callable[[], list[Batch]]:
    """Normal draws of these shapes, others in each step."""
    return each(lambda _: tuple(torch.randn(shape) for shape in shapes), steps)


def labelled(shape: tuple[int, ...], classes: int, steps: int = 3) -> Callable[[], list[Batch]]:
    """Normal draws and a class for each row."""
    return each(lambda _: (torch.randn(shape), torch.randint(classes, shape[:1])), steps)


def _setup(idiom: Idiom) -> Setup:
    model = idiom.model()
    if idiom.optimizer is None:
        return Setup(model, None, idiom.loss)
    optimizer = idiom.optimizer(model)
    return Setup(model, optimizer, idiom.loss, idiom.schedule and idiom.schedule(optimizer))


def _train(idiom: Idiom, batches: list[Batch]) -> tuple[nn.Module, list[Any], list[Any]]:
    """Eager's model, losses, and what else it leaves: states, slots, the generator."""
    torch.manual_seed(0)
    model, optimizer, loss, scheduler = _setup(idiom)
    losses, left = [], []
    for batch in batches:
        value = loss(model, *batch)
        if optimizer is not None:
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(value.detach())
    held = (*model.state_dict().values(), *idiom.outside(model))
    left += [value.detach() for value in held if isinstance(value, torch.Tensor)]
    if optimizer is not None:
        kept = [value for slots in optimizer.state.values() for value in slots.values()]
        left += [part for value in kept for part in (value if isinstance(value, list) else [value])]
    return model, losses, [*left, torch.get_rng_state()]


def assert_eager_is_sound(idiom: Idiom) -> None:
    """Two runs under one seed give the same bits, the steps differ, and something is learned.

    Without this, a difference from eager would say nothing about the Graph.
    """
    batches = idiom.batches()
    model, losses, left = _train(idiom, batches)
    _, again, left_again = _train(idiom, batches)
    assert len(left) == len(left_again)
    for first, second in zip((*losses, *left), (*again, *left_again), strict=True):
        assert same_bits(first, second)
    assert all(torch.isfinite(loss) for loss in losses)
    assert len({loss.item() for loss in losses}) > 1, "the steps do not differ"
    if idiom.optimizer is not None:
        torch.manual_seed(0)
        fresh = dict(_setup(idiom).model.named_parameters())
        assert any(not torch.equal(fresh[n], p) for n, p in model.named_parameters())


def assert_steps_are_eagers(idiom: Idiom) -> None:
    """Parity of each step, and afterwards of what lies outside of ``state_dict``."""
    made: list[Setup] = []
    before = counters.captures, counters.replays

    def make() -> Setup:
        made.append(_setup(idiom))
        return made[-1]

    with warnings.catch_warnings():
        if idiom.writes:
            warnings.simplefilter("ignore", AttributeWriteWarning)
        if idiom.ends_eager is not None:
            with pytest.warns(idiom.ends_eager):
                assert_parity(make, idiom.batches())
        elif idiom.stays_eager is None:
            assert_parity(make, idiom.batches())
        elif issubclass(idiom.stays_eager, NoProgram):
            with pytest.raises(idiom.stays_eager, match="set_fallback"):
                assert_parity(make, idiom.batches())
            return
        else:
            with pytest.warns(idiom.stays_eager), pytest.raises(ParityError, match="ran in eager"):
                assert_parity(make, idiom.batches())

    found = counters.captures - before[0], counters.replays - before[1]
    assert idiom.served in (None, found)
    eager, graphed = (idiom.outside(side.model) for side in made)
    assert len(eager) == len(graphed)
    for expected, got in zip(eager, graphed, strict=True):
        assert type(got) is type(expected)
        assert same_bits(expected.detach(), got.detach())
