"""A Graph is saved, loaded, and goes on: to the last bit as the Graph itself goes on."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

import torchgraph as tg
from tests.saved.cases import CASES
from tests.support import same_bits


def differences(left, right, path=""):
    """The paths at which two structures are not the same, to the last bit."""
    if type(left) is not type(right):
        return [f"{path}: {type(left).__name__} {type(right).__name__}"]
    if isinstance(left, dict):
        if list(left) != list(right):
            return [f"{path}: {list(left)} {list(right)}"]
        return [d for key in left for d in differences(left[key], right[key], f"{path}.{key}")]
    if isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return [f"{path}: {len(left)} {len(right)}"]
        pairs = enumerate(zip(left, right, strict=True))
        return [d for number, pair in pairs for d in differences(*pair, f"{path}.{number}")]
    return [] if same_bits(left, right) else [f"{path}: {left} {right}"]


def run(graph, calls, count):
    return [
        copy.deepcopy(graph(*args, **kwargs)) for args, kwargs in itertools.islice(calls, count)
    ]


@pytest.mark.parametrize("name", CASES)
def test_what_is_loaded_goes_on_as_the_graph_does(name, tmp_path):
    graph, calls = CASES[name]()
    run(graph, calls, 8)
    tg.save(graph, tmp_path / "saved")
    following = list(itertools.islice(calls, 6))
    random_state = torch.get_rng_state()
    expected = [graph(*copy.deepcopy(args), **kwargs) for args, kwargs in following]

    loaded = tg.load(tmp_path / "saved")
    loaded.restore_random_state()
    assert torch.equal(torch.get_rng_state(), random_state)
    got = [loaded(*args, **kwargs) for args, kwargs in following]

    assert not differences(got, expected)
    assert not differences(loaded.state_dict(), graph.state_dict())
    assert loaded.last_lr == graph.last_lr


@pytest.mark.parametrize(
    "name", ["schedule_sequential", "scaled", pytest.param("gpt", marks=pytest.mark.slow)]
)
def test_what_is_loaded_is_saved_again(name, tmp_path):
    graph, calls = CASES[name]()
    run(graph, calls, 8)
    tg.save(graph, tmp_path / "first")
    following = list(itertools.islice(calls, 6))
    expected = [graph(*args, **kwargs) for args, kwargs in following]
    got = []
    for args, kwargs in following:
        loaded = tg.load(tmp_path / "first")
        loaded.restore_random_state()
        got.append(loaded(*args, **kwargs))
        tg.save(loaded, tmp_path / "first")
    assert not differences(got, expected)
    assert not differences(tg.load(tmp_path / "first").state_dict(), graph.state_dict())


@pytest.mark.parametrize("name", ["schedule_sequential", "scaled", "gpt", "optimizer_radam"])
def test_states_pass_between_a_graph_and_what_is_loaded(name, tmp_path):
    graph, calls = CASES[name]()
    run(graph, calls, 8)
    tg.save(graph, tmp_path / "saved")
    loaded = tg.load(tmp_path / "saved")
    loaded.restore_random_state()
    run(loaded, calls, 3)
    before = copy.deepcopy(loaded.state_dict())
    graph.load_state_dict(before)
    following = list(itertools.islice(calls, 4))
    expected = [graph(*args, **kwargs) for args, kwargs in following]
    loaded.load_state_dict(before)
    assert not differences([loaded(*args, **kwargs) for args, kwargs in following], expected)
