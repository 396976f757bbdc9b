"""What is around a save, a load or a call: gradients, autocast, default dtypes, other files."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.saved.cases import CASES, Predict, Step, batches, mlp
from tests.saved.test_round_trips import differences
from torchgraph.errors import CheckpointFileError, GradPresent, NotSavable, StateDictMismatch


def ran(graph, calls, count=6):
    return [graph(*args, **kwargs) for args, kwargs in itertools.islice(calls, count)]


@pytest.fixture
def trained(tmp_path):
    """A Graph after some steps, its calls, and where it was saved."""
    graph, calls = CASES["optimizer_adamw"]()
    ran(graph, calls)
    tg.save(graph, tmp_path / "graph")
    return graph, calls, tmp_path / "graph"


@pytest.mark.parametrize("flag", ["maximize", "amsgrad", "decoupled_weight_decay"])
def test_a_flag_that_the_programs_are_not_made_for_is_refused(flag, trained):
    _, _, place = trained
    loaded = tg.load(place)
    state = loaded.state_dict()
    group = state["_train"]["optimizers"][0]["param_groups"][0]
    group[flag] = not group[flag]
    with pytest.raises(StateDictMismatch, match=flag):
        loaded.load_state_dict(state)


def test_gradients_that_are_there_are_not_dropped(trained):
    graph, calls, place = trained
    (x, y), _ = next(calls)
    nn.functional.cross_entropy(graph.model(x), y).backward()
    for take in (
        lambda: tg.save(graph, place),
        lambda: tg.export(graph, place.parent / "step.pt2"),
    ):
        with pytest.raises(GradPresent):
            take()


def test_a_loaded_graph_is_as_saved_under_autocast(trained):
    graph, calls, place = trained
    following = list(itertools.islice(calls, 3))
    random_state = torch.get_rng_state()
    expected = ran(graph, iter(following))
    loaded = tg.load(place)
    torch.set_rng_state(random_state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ran(loaded, iter(following))
    assert not differences(got, expected)
    assert not differences(loaded.state_dict(), graph.state_dict())


class Ones(tg.Graph):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def build(self, x):
        return self.net(x) + torch.ones(2), torch.rand(3)


@pytest.mark.parametrize("where", ["load", "call"])
def test_another_default_dtype(where, tmp_path):
    graph = Ones()
    x = torch.randn(4, 3)
    for _ in range(4):
        graph(x)
    tg.save(graph, tmp_path / "graph")
    torch.manual_seed(0)
    expected = graph(x)
    loaded = None if where == "load" else tg.load(tmp_path / "graph")
    torch.set_default_dtype(torch.float64)
    try:
        loaded = loaded or tg.load(tmp_path / "graph")
        torch.manual_seed(0)
        assert not differences(loaded(x), expected)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_loaded_inside_inference_mode_it_trains_outside(trained):
    _, calls, place = trained
    with torch.inference_mode():
        loaded = tg.load(place)
    ran(loaded, calls, 2)


class Handed(tg.Graph):
    """Gives back a dict that it was given, or takes one list twice."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def build(self, batch, again=None):
        return {"found": self.net(batch["x"]), "batch": batch}


@pytest.mark.parametrize("twice", [False, True])
def test_one_object_in_two_places(twice, tmp_path):
    graph = Handed()
    for _ in range(4):
        batch = {"x": torch.randn(6, 4)}
        graph(batch, batch) if twice else graph(batch)
    with pytest.raises(NotSavable, match="in two places"):
        tg.save(graph, tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


def test_half_a_step_is_not_saved(trained):
    graph, _, place = trained
    graph._runner.cache.broken = "a disk is full"
    with pytest.raises(tg.errors.GraphBroken, match="a disk is full"):
        tg.save(graph, place)
    loaded = tg.load(place)
    loaded._broken = "an op failed"
    with pytest.raises(tg.errors.GraphBroken):
        tg.save(loaded, place)


def test_files_that_others_put_there_stay(trained, monkeypatch):
    graph, _, place = trained
    (place / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointFileError, match=r"notes\.txt"):
        tg.save(graph, place)
    assert (place / "notes.txt").read_text() == "mine"
    (place / "notes.txt").unlink()
    monkeypatch.chdir(place)
    for path in (".", place, place.parent):
        with pytest.raises(CheckpointFileError):
            tg.save(graph, path)
    assert os.getcwd() == str(place)
    tg.load(place)


def test_an_export_is_of_the_options_as_they_are(tmp_path):
    model = mlp()
    graph = Step(model, optim.SGD(model.parameters(), lr=0.1))
    ran(graph, batches())
    graph.config.enable_amp(dtype=torch.bfloat16)
    tg.export(graph, tmp_path / "step.pt2")
    assert "torch.bfloat16" in str(torch.export.load(tmp_path / "step.pt2").graph)


class Named(tg.Graph):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def build(self, x):
        return self.net(x), "name"


def test_a_text_that_no_reader_of_an_export_takes(tmp_path):
    graph = Named()
    for _ in range(3):
        graph(torch.randn(2, 4))
    with pytest.raises(tg.errors.NotExportable, match="a text"):
        tg.export(graph, tmp_path / "step.pt2")


@pytest.mark.parametrize("saved_in", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("called_in", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_an_evaluation_is_saved_in_any_grad_mode(called_in, saved_in, tmp_path):
    graph, x = Predict(mlp().eval()), torch.randn(3, 4)
    with called_in():
        expected = [graph(x) for _ in range(4)][-1]
    with saved_in():
        tg.save(graph, tmp_path / "graph")
    loaded = tg.load(tmp_path / "graph")
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(loaded(x), expected)
