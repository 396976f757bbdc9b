"""What is not saved, and calls that what is loaded does not serve: errors, and nothing changes."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler as lrs

import torchgraph as tg
from tests.saved.cases import CASES, OPTIMIZERS, Predict, Step, batches, mlp, ran, trained
from tests.support import Nothing
from torchgraph._torch import pytree
from torchgraph.errors import (
    CallNotSaved,
    CheckpointDamaged,
    InvalidOption,
    NotSavable,
    StateDictMismatch,
)


def refused(graph, tmp_path, match):
    with pytest.raises(NotSavable, match=match):
        tg.save(graph, tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


same = partial(torch.testing.assert_close, rtol=0, atol=0)


def _copied(graph):
    state = copy.deepcopy(graph.state_dict())
    grads = [one.grad is None for one in graph.model.parameters()]
    leaves = [one for one in pytree.tree_leaves(state) if not isinstance(one, str)]
    return leaves, torch.get_rng_state(), grads


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("make", [optim.AdamW, partial(optim.SGD, momentum=0.9)])
def test_before_its_program_is_confirmed_dry_runs_make_one(make, calls, tmp_path):
    torch.manual_seed(0)
    model = mlp()
    graph = Step(model, make(model.parameters(), lr=0.1))
    refused(graph, tmp_path, "has not been called")
    stream = batches()
    ran(graph, stream, calls)
    (tmp_path / "graph").mkdir()
    before = _copied(graph)
    tg.save(graph, tmp_path / "graph")
    same(before, _copied(graph))
    random_state, further = torch.get_rng_state(), [next(stream)[0] for _ in range(4)]
    expected = [graph(*args) for args in further]
    torch.set_rng_state(random_state)
    loaded = tg.load(tmp_path / "graph")
    same(expected, [loaded(*args) for args in further])


def test_without_a_call_the_arguments_of_one_will_do(tmp_path):
    graph, (x, y) = Step(mlp()), next(batches())[0]
    tg.save(graph, tmp_path / "graph", args=(x,), kwargs={"y": y})
    torch.manual_seed(0)
    expected = graph(x, y=y)
    torch.manual_seed(0)
    assert torch.equal(tg.load(tmp_path / "graph")(x, y=y), expected)
    with pytest.raises(InvalidOption, match="for a Graph alone"):
        tg.save({}, tmp_path / "state", args=(x,))


def test_what_goes_by_the_data_is_not_saved_by_zeros(tmp_path):
    class Gated(Predict):
        def build(self, x):
            return self.model(x) if x.sum() > 0 else x

    graph, x = Gated(mlp().eval()), torch.ones(6, 4)
    graph(x)
    refused(graph, tmp_path, "values that depend on arguments")
    tg.save(graph, tmp_path / "graph", args=(x,))
    assert torch.equal(tg.load(tmp_path / "graph")(x), graph(x))


def test_a_program_that_does_not_serve_calls_as_things_stand_is_made_anew(tmp_path):
    model = mlp()
    graph = ran(Step(model, optim.SGD(model.parameters(), lr=0.1)), batches())
    model.eval()
    tg.save(graph, tmp_path / "graph")
    args, _ = next(batches())
    assert torch.equal(tg.load(tmp_path / "graph")(*args), graph(*args))


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lrs.LambdaLR(o, lambda step: 0.5**step),
        lambda o: lrs.SequentialLR(
            o, [lrs.LinearLR(o), lrs.MultiplicativeLR(o, lambda step: 0.9)], [3]
        ),
        lambda o: lrs.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: 0.5),
    ],
)
def test_schedules_of_functions(make, tmp_path):
    graph = ran(*trained(OPTIMIZERS["momentum"], make))
    refused(graph, tmp_path, "schedule of functions")


def test_a_step_that_updates_by_itself(tmp_path):
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    class Own(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    refused(ran(Own(), batches()), tmp_path, "takes its own update")


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 3)
        self.last = torch.zeros(6, 3)

    def forward(self, x):
        self.last = self.cell(x, self.last)
        return self.last


def test_tensors_that_a_step_leaves_in_objects(tmp_path):
    graph = Predict(Remembers())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        graph.config.set_fallback("eager")
        ran(graph, (((args[0],), {}) for args, _ in batches()))
    refused(graph, tmp_path, "leaves tensors in objects|no program that is confirmed")


def test_buckets_and_passes_of_the_users(tmp_path):
    graph = Predict(mlp().eval())
    graph.config.set_shape_buckets(0, [8, 16])
    refused(ran(graph, (((args[0],), {}) for args, _ in batches())), tmp_path, "pads its batches")
    graph = Predict(mlp().eval())
    graph.config.set_backend("auto")
    graph.config.passes.insert(Nothing())
    refused(ran(graph, (((args[0],), {}) for args, _ in batches())), tmp_path, "are code")


def test_results_of_other_classes_name_the_class(tmp_path):
    class Pair(NamedTuple):
        first: torch.Tensor
        second: torch.Tensor

    class Named(tg.Graph):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def build(self, x):
            return Pair(self.net(x), x)

    graph = ran(Named(), (((args[0],), {}) for args, _ in batches()))
    refused(graph, tmp_path, "build returns what no file can hold.*Pair")


def test_calls_that_were_not_saved_change_nothing(tmp_path):
    graph, calls = CASES["optimizer_adamw"]()
    ran(graph, calls)
    tg.save(graph, tmp_path / "graph")
    loaded = tg.load(tmp_path / "graph")
    (x, y), _ = next(calls)
    before = {key: value.clone() for key, value in loaded.state_dict()["model"].items()}
    for args in [(x[:2], y[:2]), (x.double(), y), (x.t().contiguous().t(), y), (x, 3)]:
        with pytest.raises(CallNotSaved, match=r"args\[0\]: float32\[6, 4\]"):
            loaded(*args)
    with pytest.raises(tg.errors.UnsupportedInput, match="missing a required argument"):
        loaded(x)
    after = loaded.state_dict()
    assert all(torch.equal(after["model"][key], value) for key, value in before.items())
    assert after["_train"]["step"] == 6
    with torch.inference_mode():
        inside = x.clone()
    loaded(inside, y)
    loaded(x.clone().requires_grad_(), y)


@pytest.mark.parametrize("name", ["one_tensor_twice", "slices_of_one_tensor"])
def test_tensors_apart_are_another_call_than_tensors_in_one_memory(name, tmp_path):
    graph, calls = CASES[name]()
    ran(graph, calls)
    tg.save(graph, tmp_path / "graph")
    loaded = tg.load(tmp_path / "graph")
    (a, b), _ = next(calls)
    with pytest.raises(CallNotSaved, match=r"args\[1\] in the memory of args\[0\]"):
        loaded(a.clone(), b.clone() + 1)
    with pytest.raises(tg.errors.NotExportable, match=r"args\[1\] lies in the memory"):
        tg.export(graph, tmp_path / "step.pt2")
    tg.export(graph, tmp_path / "step.pt2", args=(a.clone(), b.clone()))
    loaded(a, b)


def test_a_branch_that_was_not_saved_says_where_it_was_taken(tmp_path):
    graph, calls = CASES["branching"]()
    positive = next(calls)[0][0]
    ran(graph, itertools.repeat(((positive,), {})))
    tg.save(graph, tmp_path / "graph")
    loaded = tg.load(tmp_path / "graph")
    assert torch.equal(loaded(positive), graph(positive))
    with pytest.raises(CallNotSaved, match="for other values"):
        loaded(-positive)
    assert torch.equal(loaded(positive), graph(positive))


def test_a_state_that_does_not_fit_is_refused_whole(tmp_path):
    graph, calls = CASES["optimizer_adamw"]()
    ran(graph, calls)
    tg.save(graph, tmp_path / "graph")
    loaded = tg.load(tmp_path / "graph")
    state = loaded.state_dict()
    before = {key: value.clone() for key, value in state["model"].items()}
    for spoil in (
        lambda s: s["model"].update({"0.weight": torch.zeros(3, 3)}),
        lambda s: s["model"].pop("4.bias"),
        lambda s: s.pop("_train"),
        lambda s: s["_train"].update(optimizers=[]),
        lambda s: s["_train"].update(rng={"cpu": torch.zeros(3)}),
    ):
        spoiled = tg.load(tmp_path / "graph").state_dict()
        spoiled["model"]["0.bias"] = torch.ones(8)
        spoil(spoiled)
        with pytest.raises(StateDictMismatch):
            loaded.load_state_dict(spoiled)
        now = loaded.state_dict()["model"]
        assert all(torch.equal(now[key], value) for key, value in before.items())


SAVERS = """
import os, sys, torch, torchgraph as tg
torch.set_num_threads(1)
graph = tg.load(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        while True:
            tg.save(graph, sys.argv[1])
    print(child, flush=True)
    sys.stdin.readline()
    os.waitpid(child, 0)
"""


def test_a_killed_save_leaves_a_whole_directory(tmp_path):
    graph, calls = CASES["optimizer_adamw"]()
    tg.save(ran(graph, calls), tmp_path / "graph")
    process = subprocess.Popen(
        [sys.executable, "-c", SAVERS, str(tmp_path / "graph")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout.readline() == "ready\n"
    left = 0
    for number in range(60):
        process.stdin.write("\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        time.sleep(0.02 + 0.015 * number)
        os.kill(child, signal.SIGKILL)
        process.stdin.write("\n")
        process.stdin.flush()
        tg.load(tmp_path / "graph")
        left += len(os.listdir(tmp_path)) - 1
        if left and number >= 12:
            break
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
    assert left  # some were killed half-way
    tg.save(graph, tmp_path / "graph")
    assert os.listdir(tmp_path) == ["graph"]


@pytest.mark.parametrize("name", ["manifest.json", "program.json", "program.py"])
def test_a_part_of_a_directory_names_the_directory(name, saved):
    with pytest.raises(CheckpointDamaged, match="part of the Graph that was saved to") as found:
        tg.load(saved / name)
    assert str(saved) in str(found.value)


def test_a_state_is_a_dict(saved):
    loaded = tg.load(saved)
    with pytest.raises(StateDictMismatch, match=r"a LoadedGraph, no dict: give its state_dict\(\)"):
        loaded.load_state_dict(loaded)
