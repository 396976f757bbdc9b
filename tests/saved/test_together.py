"""Saves and loads of one path at the same time, and states that are taken whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.saved.cases import CASES, Predict, Step, batches, mlp, ran
from torchgraph.errors import CheckpointFileError, StateDictMismatch
from torchgraph.saved import directory


class Constant(nn.Module):
    """Gives its weight times a number of Python's: a program of another save is found out."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.full((2,), value)), value

    def forward(self, x):
        return (x * self.weight).mean() * self.factor


def constant(value: float) -> tg.Graph:
    graph = Predict(Constant(value))
    for _ in range(3):
        graph(torch.ones(2))
    return graph


@pytest.mark.parametrize("part", ["program.json", "weights.safetensors"])
def test_what_is_loaded_is_of_one_save(part, tmp_path, monkeypatch):
    tg.save(constant(1.0), tmp_path / "graph")
    opened, other, saves = directory.Directory.opened, constant(2.0), []

    def replaced_first(self, name):
        # The first two openings of a file look at its hash.
        if name == part and self.about and len(saves) < 3:
            saves.append(name)
            tg.save(other, tmp_path / "graph")
        return opened(self, name)

    monkeypatch.setattr(directory.Directory, "opened", replaced_first)
    assert tg.load(tmp_path / "graph")(torch.ones(2)).item() in (1.0, 4.0)
    assert saves


def test_a_save_that_another_takes_for_a_left_one_begins_again(tmp_path, monkeypatch):
    locked, tried = directory._locked, []

    def too_late(path):
        tried.append(path)
        if len(tried) == 1:  # another save finds it before it is locked
            shutil.rmtree(path)
        return locked(path)

    monkeypatch.setattr(directory, "_locked", too_late)
    tg.save(constant(1.0), tmp_path / "graph")
    assert len(tried) == 2
    assert tg.load(tmp_path / "graph")(torch.ones(2)).item() == 1.0
    assert os.listdir(tmp_path) == ["graph"]


def test_nothing_is_saved_inside_a_saved_directory(tmp_path):
    graph = constant(1.0)
    tg.save(graph, tmp_path / "run")
    with pytest.raises(CheckpointFileError, match=r"a Graph was saved to .*run, around it"):
        tg.save(graph, tmp_path / "run" / "last")
    tg.load(tmp_path / "run")


def test_files_of_others_beside_compiled_code_stay(tmp_path):
    graph = constant(1.0)
    tg.save(graph, tmp_path / "run")
    (tmp_path / "run" / "compiled").mkdir()
    (tmp_path / "run" / "compiled" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointFileError, match=r"a file of others in it, compiled/notes\.txt"):
        tg.save(graph, tmp_path / "run")
    assert (tmp_path / "run" / "compiled" / "notes.txt").read_text() == "mine"


def loaded(name: str, path: Path) -> tuple[tg.LoadedGraph, tg.Graph]:
    graph = ran(*CASES[name]())
    tg.save(graph, path)
    return tg.load(path), graph


def test_the_state_of_a_cyclic_schedule_is_taken(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3)
    graph, calls = Step(model, optimizer, schedule), batches()
    for _ in range(6):
        graph(*next(calls)[0])
    tg.save(graph, tmp_path / "graph")
    one = tg.load(tmp_path / "graph")
    state = one.state_dict()
    rates = one.last_lr
    one(*next(calls)[0])
    one.load_state_dict(state)
    one.load_state_dict(state)  # which it left as it was
    assert one.last_lr == rates


def test_a_state_that_has_met_other_batches_is_taken_whole(tmp_path):
    one, graph = loaded("optimizer_adam", tmp_path / "graph")
    calls = batches(4)
    for _ in range(4):
        graph(*next(calls)[0])
    state = graph.state_dict()
    one.load_state_dict(state)
    got = one.state_dict()
    assert got["_train"]["calls"] == state["_train"]["calls"]
    slots = (s["_train"]["optimizers"][0]["state"][0]["exp_avg"] for s in (got, state))
    assert torch.equal(*slots)


@pytest.mark.parametrize("calls", [3, ["args[0]"], {"args[0]": "many"}, {4: 4}])
def test_counts_that_are_none_change_nothing(calls, tmp_path):
    one, _ = loaded("optimizer_adam", tmp_path / "graph")
    state, before = one.state_dict(), one.state_dict()
    state["_train"] = {**state["_train"], "calls": calls, "step": 99}
    state["model"] = {k: v + 1 if v.is_floating_point() else v for k, v in state["model"].items()}
    with pytest.raises(StateDictMismatch, match="calls"):
        one.load_state_dict(state)
    after = one.state_dict()
    assert after["_train"]["step"] == before["_train"]["step"]
    assert all(torch.equal(after["model"][key], before["model"][key]) for key in before["model"])


def test_a_schedule_that_raises_leaves_all_as_it_was(tmp_path, monkeypatch):
    one, _ = loaded("schedule_sequential", tmp_path / "graph")
    before = one.state_dict()
    weights = {key: value.clone() for key, value in before["model"].items()}
    state = {**before, "model": {key: value * 2 for key, value in weights.items()}}
    broken = iter([True])
    monkeypatch.setattr(one, "_set_scaler", lambda state: next(broken, None) and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.load_state_dict(state)
    after = one.state_dict()["model"]
    assert all(torch.equal(after[key], weights[key]) for key in weights)


def test_a_list_that_is_cut_says_so(tmp_path):
    one, _ = loaded("optimizer_adam", tmp_path / "graph")
    state = one.state_dict()
    state["model"] = {f"other.{number}": torch.ones(1) for number in range(40)}
    with pytest.raises(StateDictMismatch, match=r"\.\.\. and \d+ more"):
        one.load_state_dict(state)
