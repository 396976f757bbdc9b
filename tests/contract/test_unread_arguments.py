"""Arguments that a step does not read are no part of its key; those that it reads are."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.live.inputs import Inputs
from torchgraph.structure import UNREAD

look = locals  # another name of it


def unread(function: Any) -> set[str]:
    """The parameters that it does not read, as binding has them."""
    found = Inputs(function).unread
    return set() if found is None else set(found.names)


def plain(x, i, *rest: Any, k=1, **others: Any):
    """Not even in a text: i, k, rest."""
    del i
    return x


def stored(x, i):
    i = x + 1
    return i * i


def in_a_lambda(x, i):
    return lambda: i


def in_a_comprehension(x, i):
    return [x for _ in range(2) if i]


def in_a_dead_branch(x, i):
    if False or x is None:
        x = i
    return x


def in_a_text(x, i):
    return inner("x * i")


def inner(text):
    return sys._getframe(1).f_locals["i"]


def by_locals(x, i):
    return locals()["i"]


def by_another_name(x, i):
    return look()["i"]


def by_eval(x, i):
    return builtins.eval("x")


def by_a_frame(x, i):
    return inspect.currentframe().f_locals


def passed_on(x, *rest: Any, **others: Any):
    return plain(x, *rest, **others)


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any):
    return plain(*args, **kwargs)


class Owner:
    """Has methods."""

    def method(self, x, i):
        return x

    def up(self, x, i):
        return super().__init__()


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (plain, {"i", "k", "rest", "others"}),
        (stored, set()),
        (in_a_lambda, {"x"}),
        (in_a_comprehension, set()),
        (in_a_dead_branch, set()),
        (in_a_text, set()),
        (by_locals, set()),
        (by_another_name, set()),
        (by_eval, set()),
        (by_a_frame, set()),
        (passed_on, set()),
        (wrapped, set()),
        (Owner().method, {"i"}),
        (Owner.method, {"self", "i"}),
        (Owner.up, {"x", "i"}),
        (functools.partial(plain, 1), set()),
        (lambda x, i: x, {"i"}),
    ],
)
def test_what_counts_as_read(function, names):
    assert unread(function) == names


def test_unread_arguments_are_left_out_of_the_key():
    inputs = Inputs(plain)
    x = torch.ones(2)
    call = inputs.bind((x, 1, [2], object()), {"k": 3, "other": iter([4])})
    again = inputs.bind((x, torch.ones(5)), {})
    assert call.key != again.key  # k was given, and was not
    assert inputs.bind((x, {}), {"k": torch.ones(7)}).key == call.key
    assert [one is UNREAD for one in call.args] == [False, True]
    assert call.tensors == [x]
    whole = inputs.bind((x, torch.ones(5)), {}, whole=True)
    assert len(whole.tensors) == 2


def test_code_that_is_put_into_the_function_later_reads_what_it_names():
    def step(x, i):
        return x

    inputs = Inputs(step)
    assert inputs.bind((1, 2), {}).args == (1, UNREAD)
    step.__code__ = (lambda x, i: x + i).__code__
    assert inputs.bind((1, 2), {}).args == (1, 2)


class Engine:
    """Holds what no step can be given, an iterator."""

    def __init__(self) -> None:
        self.batches = iter([1])


def test_steps_are_served_whatever_they_are_given_besides():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @tg.step
    def step(engine, batch, batch_idx):
        optimizer.zero_grad()
        loss = net(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    engine = Engine()
    for i in range(12):
        batch = torch.full((2, 4), float(i))
        expected = net(batch).pow(2).mean()
        loss = step(engine, batch, batch_idx=i) if i % 2 else step(engine, batch, i)
        assert torch.equal(loss, expected)
    assert step.report().calls.recorded == 2
    assert step.report().calls.programs == 10


def test_an_argument_that_is_read_is_part_of_the_key():
    net = nn.Linear(4, 1)
    step, x = tg.step(lambda x, i: net(x) * i), torch.ones(2, 4)
    for i in (1, 1, 1, 2, 2, 2, 1.0, 1.0, True, True):
        assert torch.equal(step(x, i), net(x) * i)
    assert step.report().calls.recorded == 8


def test_a_saved_graph_takes_them_too(tmp_path):
    class Scaled(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 1)

        def build(self, x, index):
            return self.net(x)

    graph, x = Scaled(), torch.ones(2, 4)
    for i in range(3):
        expected = graph(x, i)
    tg.save(graph, tmp_path / "saved")
    loaded = tg.load(tmp_path / "saved")
    assert torch.equal(loaded(x, 17), expected)
    tg.export(graph, tmp_path / "exported.pt2")
