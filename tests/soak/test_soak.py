"""Long loops hold no more at their end than in their middle: memory, objects, files, processes."""

from __future__ import annotations

import contextlib
import shutil

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.memory.models import Evaluate, Net, Train, Unsupported, batch, own_step, run
from tests.soak.gauge import check, growth, held

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning"),
]


def eager(rows=lambda number: 8):
    """A loop of the same kind without a Graph."""
    model = Net()
    optimizer = optim.AdamW(model.parameters())

    def step(number):
        x, y = batch(rows(number))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def eager_life(number):
    """A model that is made, trained and dropped."""
    step = eager()
    for _ in range(4):
        step(number)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_3000_steps_on_auto():
    graph = Train(Net())
    graph.config.set_backend("auto", switch_at=100)

    check(lambda number: graph(*batch()), eager(), 3000)

    assert "runs Inductor" in str(graph.report())


def test_300_shapes_in_a_cache_of_8(monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "fast")  # strict, torch remembers each op and shape
    graph = Train(Net())
    graph.config.set_cache_size(8)

    def rows(number):
        return 4 + number

    check(lambda number: run(graph, 2, rows(number)), eager(rows), 300)


def test_200_graphs_made_and_dropped():
    check(lambda number: run(Train(Net())), eager_life, 200)


def test_50_builds_that_fail():
    graph = Train(Net())

    def fail(number):
        with contextlib.suppress(tg.errors.GraphError):
            Train(Unsupported())(*batch())
        with contextlib.suppress(RuntimeError):
            graph(torch.randn(8, 5), batch()[1])

    check(fail, eager_life, 50)


def test_100_looks():
    graph = Train(Net())
    run(graph)

    def look(number):
        graph.check(*batch())
        str(graph.report())
        repr(graph)

    check(look, eager(), 100)


def test_training_and_evaluation_in_turn():
    model = Net()
    train, evaluate = Train(model), Evaluate(model)

    def step(number):
        model.train()
        train(*batch())
        model.eval()
        evaluate(batch()[0])

    check(step, eager(), 600)


def test_200_checkpoints(tmp_path):
    graph = Train(Net())
    run(graph)

    def step(number):
        torch.save(graph.state_dict(), tmp_path / "states")
        graph.load_state_dict(torch.load(tmp_path / "states"))
        run(graph, 2)

    check(step, eager(), 200)


def test_own_updates_made_and_dropped():
    check(lambda number: run(own_step()), eager_life, 60)


def test_the_gauge_sees_a_leak():
    kept, files = [], []

    def step(number):
        kept.append([torch.zeros(2000)])
        if number % 10 == 0:
            files.append(open("/proc/self/statm"))  # noqa: SIM115  # it is left open

    grown = growth(step, 1200)
    for file in files:
        file.close()

    assert grown.objects > 300
    assert grown.files > 30
    assert grown.resident > 2 << 20
    assert held().resident > 0
