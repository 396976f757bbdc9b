"""The tensor of the first calls is held elsewhere too, and the step reads it there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests import support
from tests.contract.models import Eval, Function, Train, eager
from tests.support import thinned
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters

HELD: dict[str, Any] = {}


class Model(nn.Module):
    """Reads one tensor as its argument, and one, perhaps the same, where ``read`` finds it."""

    def __init__(self, read: Callable[[Any], torch.Tensor], first: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.read = read
        self.first = first
        self.store = SimpleNamespace(first=first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - self.read(self))


READS: dict[str, Callable[[Any], torch.Tensor]] = {
    "a global dict": lambda model: HELD["first"],
    "an attribute": lambda model: model.first,
    "an object": lambda model: model.store.first,
    "a view of it": lambda model: HELD["first"][:1],
    "its data": lambda model: HELD["first"].data,
}


def batches(kind: str = "tensors") -> list[torch.Tensor]:
    torch.manual_seed(0)
    return KINDS[kind]()


def made(read: Callable[[Any], torch.Tensor], first: torch.Tensor) -> Model:
    torch.manual_seed(1)
    HELD["first"] = first
    return Model(read, first)


ORDERS = {
    "then others": [0, 0, 0, 1, 2, 1, 2, 1, 2],
    "in turn": [0, 0, 1, 1, 0, 0, 1, 1, 2, 0, 1],
    "once more": [0, 0, 0, 1, 0, 1, 2, 2],
}


KINDS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "tensors": lambda: [torch.randn(4, 3) for _ in range(3)],
    "rows of one": lambda: list(torch.randn(12, 3).split(4)),
}


CASES = thinned(
    product(READS, ORDERS, KINDS),
    keep=[
        ("a global dict", "then others", "tensors"),
        ("an attribute", "in turn", "tensors"),
        ("an object", "once more", "rows of one"),
        ("a view of it", "in turn", "rows of one"),
        ("its data", "then others", "tensors"),
    ],
)


@pytest.mark.parametrize("case", CASES)
def test_train(case: tuple[str, str, str]) -> None:
    name, order, kind = case
    data = batches(kind)
    model, twin = (made(READS[name], data[0]) for _ in range(2))
    optimizer, other = (optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    graph = Train(model, optimizer)
    for number in ORDERS[order]:
        expected = eager(twin, other, data[number])
        assert support.same_bits(graph(data[number]), expected)
    assert all(map(support.same_bits, model.parameters(), twin.parameters()))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_eval(case: tuple[str, str, str]) -> None:
    name, order, kind = case
    data = batches(kind)
    model = made(READS[name], data[0])
    graph = Eval(model)
    for number in ORDERS[order]:
        assert support.same_bits(graph(data[number]), model(data[number]))


@torch.no_grad()
def test_other_batches_have_a_program_soon() -> None:
    """A repeated batch that nobody else reads: one call more is recorded, and no other after it."""
    data = batches()
    graph = Eval(made(lambda model: model.linear.weight[:1], data[0]))
    for _ in range(3):
        graph(data[0])
    with counters.expect(replays=3):
        for number in (0, 1, 2, 1):  # the second of them is recorded
            graph(data[number])


@torch.no_grad()
def test_a_batch_refilled_in_place_says_no_more() -> None:
    buffer = torch.zeros(4, 3)
    model = made(READS["an attribute"], buffer)
    graph = Eval(model)
    for _ in range(3):
        graph(buffer)
    with counters.expect(replays=3):
        for x in batches():
            buffer.copy_(x)
            assert support.same_bits(graph(buffer), model(buffer))


@pytest.mark.parametrize(
    ("starts", "read"),
    [
        ([0, 4, 8, 12, 0, 4], lambda rows: rows[:4]),
        ([8, 8, 8, 4, 4, 0], lambda rows: rows),
        ([4, 8, 4, 8, 4, 8], lambda rows: rows[2::5]),
    ],
)
def test_batches_are_rows_of_what_the_step_reads_as_well(
    starts: list[int], read: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Anchors, prototypes, a memory bank: other rows of the data set, or all of it."""
    torch.manual_seed(0)
    rows = torch.randn(20, 3)
    held = read(rows)
    model, twin = (made(lambda model: held.mean(0), rows) for _ in range(2))
    optimizer, other = (optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    graph = Train(model, optimizer)
    before = counters.replays
    for start in starts * 2:
        x = rows[start : start + 4]
        expected = eager(twin, other, x)
        assert support.same_bits(graph(x), expected)
        assert all(map(support.same_bits, model.parameters(), twin.parameters()))
    assert counters.replays > before + 3


@torch.no_grad()
def test_memory_in_front_of_an_argument_stays_in_eager() -> None:
    """``as_strided`` counts from where the memory begins, which is not where the argument does."""
    rows = torch.arange(12.0).reshape(4, 3)
    graph = Function(lambda x: x + x.as_strided((1, 3), (3, 1), 0))

    def compare() -> None:
        for number in (1, 1, 2, 3, 1):
            x = rows[number : number + 1]
            assert torch.equal(graph(x), x + rows[0])

    with pytest.warns(EagerWarning, match="in front of where the argument begins"):
        compare()
