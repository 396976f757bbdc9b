"""Classes that look at what they are made of, as PackedSequence does: arguments and results."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.cases.forms import Update
from tests.cases.plays import Play, of
from tests.cases.table import Table
from tests.contract.models import Function, adam, same
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


def packed(*lengths: int):
    padded = torch.randn(len(lengths), max(lengths), 3)
    return pack_padded_sequence(
        padded, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )


def gru(build, calls) -> Play:
    model = nn.GRU(3, 4, batch_first=True).requires_grad_(False)
    return Play(lambda batch: build(model, batch), [model], calls=[(one,) for one in calls])


def other_lengths() -> Play:
    """(4, 3, 2) and (4, 4, 1): nine rows in four steps, which one program cannot serve."""
    lengths = [(4, 3, 2), (4, 4, 1), (5, 2, 2), (3, 3, 3)]
    order = (0, 0, 1, 1, 0, 2, 1, 3, 0, 2, 3, 1, 0, 1, 2, 3, 1, 0, 3, 2, 0, 1, 2, 3)
    return gru(lambda model, batch: model(batch)[1], [packed(*lengths[n]) for n in order])


def training() -> Play:
    model = nn.LSTM(3, 4, num_layers=2, dropout=0.2, batch_first=True)
    optimizer = adam(model)

    def build(batch):
        loss = model(batch)[0].data.square().mean()
        loss.backward()
        return loss

    calls = [(packed(*((4, 3, 2), (4, 4, 1))[n // 4 % 2]),) for n in range(10)]
    return Play(Update(build, model, optimizer), [model, optimizer], calls=calls)


table = Table("graph")
table.rows(
    {
        "an argument and a result": lambda: gru(
            lambda model, given: model(given["in"][0])[0],
            [{"in": [packed(2, 4, 1), 3]} for _ in range(6)],
        ),
        "handed through": lambda: gru(
            lambda model, batch: (batch, model(batch)[1]), [packed(2, 4) for _ in range(6)]
        ),
        "a dataclass": lambda: of(
            lambda given: [Checked(given.x * 2, given.name), given],
            lambda n: (Checked(torch.full((2,), float(n))),),
            6,
        ),
    },
    recorded=1,
    served=4,
)
table.rows({"other lengths in the same shapes": other_lengths}, recorded=4)
table.rows({"training": training}, forms="updating", recorded=2)


@pytest.mark.parametrize("case", table)
def test_what_a_class_computes_is_eagers(case):
    case.check()


def test_a_packed_sequence_that_is_handed_through_is_a_copy():
    graph = Function(lambda batch: batch)
    for _ in range(4):
        batch = packed(2, 4)
        assert graph(batch).data.data_ptr() != batch.data.data_ptr()


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
