"""Classes that look at what they are made of, as PackedSequence does: arguments and results."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from tests import support
from tests.contract.models import Function, adam, same, snapshot
from tests.support import settle
from torchgraph.testing import counters


class _Span(NamedTuple):
    start: torch.Tensor
    end: torch.Tensor


class Span(_Span):
    """Two tensors and a third in an attribute, all of which its own constructor computes."""

    def __new__(cls, start, length):
        assert type(start) is torch.Tensor
        assert start.device.type == "cpu"
        made = super().__new__(cls, start, start + length)
        made.middle = start + length / 2
        return made


@dataclasses.dataclass(frozen=True)
class Checked:
    x: torch.Tensor
    name: str = "a"

    def __post_init__(self):
        assert type(self.x) is torch.Tensor
        assert self.x.device.type == "cpu"


def packed(*lengths: int, seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    padded = torch.randn(len(lengths), max(lengths), 3)
    return pack_padded_sequence(
        padded, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )


def equal(left, right):
    if isinstance(left, PackedSequence):
        return type(right) is PackedSequence and all(map(equal, left, right))
    return left is right if left is None else torch.equal(left, right)


@pytest.fixture
def frozen():
    return nn.GRU(3, 4, batch_first=True).requires_grad_(False)


def test_a_packed_sequence_is_an_argument_and_a_result(frozen):
    graph = Function(lambda given: frozen(given["in"][0])[0], model=frozen)
    with counters.expect(captures=1, replays=4):
        for seed in range(6):
            batch = packed(2, 4, 1, seed=seed)
            got = graph({"in": [batch, 3]})
            assert equal(got, frozen(batch)[0])
            assert torch.equal(got.batch_sizes, batch.batch_sizes)


def test_a_packed_sequence_that_is_handed_through_is_a_copy(frozen):
    graph = Function(lambda batch: (batch, frozen(batch)[1]), model=frozen)
    for seed in range(4):
        batch = packed(2, 4, seed=seed)
        got, state = graph(batch)
        assert equal(got, batch)
        assert torch.equal(state, frozen(batch)[1])
        assert got.data.data_ptr() != batch.data.data_ptr()


def test_other_lengths_in_the_same_shapes_are_other_programs(frozen):
    """(4, 3, 2) and (4, 4, 1): nine rows in four steps, which one program cannot serve."""
    graph = Function(lambda batch: frozen(batch)[1], model=frozen)
    lengths = [(4, 3, 2), (4, 4, 1), (5, 2, 2), (3, 3, 3)]
    for number in (0, 0, 1, 1, 0, 2, 1, 3, 0, 2, 3, 1, 0, 1, 2, 3):
        batch = packed(*lengths[number])
        assert torch.equal(graph(batch), frozen(batch)[1]), number
    with counters.expect(captures=0, replays=8):
        for number in (1, 0, 3, 2, 0, 1, 2, 3):
            batch = packed(*lengths[number])
            assert torch.equal(graph(batch), frozen(batch)[1]), number


def test_packed_sequences_train_like_eager():
    def made():
        torch.manual_seed(0)
        model = nn.LSTM(3, 4, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        return model, adam(model)

    def step(model, batch):
        loss = model(batch)[0].data.square().mean()
        loss.backward()
        return loss

    (model, optimizer), (twin, other) = made(), made()
    graph = Function(lambda batch: step(model, batch), optimizer, model=model)
    torch.manual_seed(1)
    batches = [packed(*((4, 3, 2), (4, 4, 1))[number // 4 % 2]) for number in range(16)]
    torch.manual_seed(2)
    got = [graph(batch) for batch in batches]
    state = snapshot(model, optimizer)
    torch.manual_seed(2)
    for batch, loss in zip(batches, got, strict=True):
        assert torch.equal(loss, step(twin, batch))
        other.step()
        other.zero_grad()
    assert same(state, snapshot(twin, other))
    assert len(support.replays(graph)) == 2


def test_a_named_tuple_that_computes_what_it_holds():
    def function(span):
        length = span.end - span.start
        return span, length * span.middle, Span(span.end, length)

    graph = Function(function)
    for number in range(5):
        span = Span(torch.full((2,), float(number)), torch.arange(2.0))
        for got, expected in zip(graph(span), function(span), strict=True):
            assert type(got) is type(expected)
            assert same(got, expected)
            assert same(getattr(got, "middle", 0), getattr(expected, "middle", 0))
    with counters.expect(captures=0, replays=1):
        graph(Span(torch.ones(2), torch.ones(2)))


def test_a_dataclass_that_looks_at_what_it_holds():
    def function(given):
        return [Checked(given.x * 2, given.name), given]

    graph = Function(function)
    settle(graph, Checked(torch.ones(2)))
    for number in range(3):
        given = Checked(torch.full((2,), float(number)))
        with counters.expect(captures=0, replays=1):
            got = graph(given)
        for one, expected in zip(got, function(given), strict=True):
            assert type(one) is Checked
            assert one.name == expected.name
            assert torch.equal(one.x, expected.x)
