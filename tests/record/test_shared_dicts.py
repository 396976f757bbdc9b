"""Objects of one ``__dict__``: what one of them writes, the others read."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function
from torchgraph.testing import counters


class _State:
    shared: dict[str, object] = {}  # noqa: RUF012 -- as singletons have it

    def __init__(self):
        self.__dict__ = self.shared


def _pair(**attributes: object):
    cls = type("State", (_State,), {"shared": dict(attributes)})
    return cls(), cls()


def test_what_one_object_writes_is_not_read_of_the_other():
    def run(wrap):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        mine, others = _pair(n=0, sync=True)

        def build(x):
            mine.n += 1
            mine.sync = mine.n % 2 == 0
            loss = model(x).sum()
            (loss / 2).backward()
            if others.sync:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        step = wrap(build)
        losses = [step(torch.ones(3, 4)) for _ in range(14)]
        assert (mine.n, mine.sync, others.sync) == (14, True, True)
        return [*losses, *(p.detach() for p in model.parameters())], step

    def graph(build):
        step = tg.step(build)
        step.config.set_backend("aten")
        return step

    expected, _ = run(lambda build: build)
    found, step = run(graph)
    assert all(map(torch.equal, expected, found))
    assert step.report().calls.programs >= 7
    assert not step.report().calls.eager


def test_a_dict_that_only_one_of_them_keeps_is_seen():
    mine, others = _pair(scale=1.0)

    def build(x):
        mine.scale = mine.scale + 0.0
        return x * others.scale

    graph = Function(build)
    before = counters.replays
    assert [graph(torch.ones(1)).item() for _ in range(6)] == [1.0] * 6
    assert counters.replays > before
    others.__dict__ = {"scale": 5.0}
    assert [graph(torch.ones(1)).item() for _ in range(3)] == [5.0] * 3


def test_what_others_put_into_the_shared_dict_is_seen():
    mine, others = _pair(scale=1.0)
    held = SimpleNamespace(first=mine, second=others)

    def build(x):
        return x * held.first.scale * held.second.scale

    graph = Function(build)
    for scale in (1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 1.0):
        mine.shared["scale"] = scale
        assert graph(torch.ones(1)).item() == scale * scale


def test_numbers_that_others_move_are_read_through_both():
    mine, others = _pair(scale=1)

    def build(x):
        return x * mine.scale + others.scale

    graph = tg.step(build)
    graph.config.set_backend("aten")
    graph.config.set_look_again("off")
    expected, found = [], []
    for number in range(14):
        mine.scale = number
        if number == 10:
            others.__dict__ = {"scale": 100}
        expected.append(number + others.scale)
        found.append(graph(torch.ones(1)).item())
    assert found == expected
    assert graph.report().calls.programs >= 5
