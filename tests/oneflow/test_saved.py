"""Checkpoints that OneFlow 0.9 wrote, read; and ours, read by OneFlow."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.oneflow.saved_states import (
    checkpoint,
    golden,
    same,
    state_for_oneflow,
    unpacked,
    value_of,
)
from torchgraph.errors import CheckpointDamaged, InvalidOption, NotSavable
from torchgraph.oneflow._port.names.table import table
from torchgraph.oneflow._port.saved import load, save, save_checkpoint
from torchgraph.oneflow._port.saved.pickles import pickled

READ = [name for name, one in golden()["checkpoints"].items() if "value" in one]


@pytest.mark.parametrize("name", READ)
def test_a_checkpoint_of_oneflow_is_read_to_the_last_bit(name, tmp_path):
    found = load(checkpoint(name, tmp_path / "saved"))
    expected = value_of(golden()["checkpoints"][name]["value"])
    if name in ("variables", "graph", "graph state"):  # folders have no order
        found, expected = (dict(sorted(one.items())) for one in (found, expected))
    assert same(found, expected)


def test_all_forms_are_there():
    assert set(READ) == {
        *("kinds", "nested", "bfloat16", "global", "variables", "single", "single, protocol 3"),
        *("graph", "graph state"),
    }


def test_a_tensor_in_two_places_is_one(tmp_path):
    tied = load(checkpoint("nested", tmp_path / "saved"))["tied"]
    assert tied["one"] is tied["other"]


def test_tensors_are_plain_and_without_gradient(tmp_path):
    state = load(checkpoint("nested", tmp_path / "saved"))
    assert type(state["parameter"]) is torch.Tensor
    assert not state["net"]["weight"].requires_grad
    assert state["net"]._metadata == OrderedDict()


# --- modules ------------------------------------------------------------------------------------


def given_of(name: str) -> Any:
    return value_of(golden()["modules"][name]["input"])


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)]


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> Any:
    return load(checkpoint("modules", tmp_path_factory.mktemp("modules") / "saved"))


def module_named(name: str) -> nn.Module:
    return eval(name, vars(nn).copy()).eval()


@pytest.mark.parametrize("name", golden()["modules"])
def test_a_module_of_torch_takes_the_state_and_gives_the_numbers(name, states):
    module = module_named(name)
    if "track_running_stats" in name:  # OneFlow's never reads or writes them
        module.train()
    assert sorted(states[name]) == sorted(module.state_dict())
    module.load_state_dict(states[name])
    expected = value_of(golden()["modules"][name]["outputs"])
    found = flat(module(given_of(name)))
    if expected is None:  # OneFlow 0.9 cannot run it
        assert name.partition("(")[0] in ("LSTMCell", "GRUCell", "RNNCell")
        return
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


def test_the_numbers_depend_on_the_state():
    name = "LSTM(2, 2, num_layers=2, bidirectional=True)"
    found = flat(module_named(name)(given_of(name)))
    assert not torch.allclose(found[0], value_of(golden()["modules"][name]["outputs"])[0])


def test_running_statistics_of_instance_norm_are_as_they_were_made(states):
    """OneFlow keeps them in the state and never moves them: torch's eval() would divide by 1."""
    state = states["InstanceNorm2d(3, affine=True, track_running_stats=True)"]
    assert same(state["running_mean"], torch.zeros(3))
    assert same(state["running_var"], torch.ones(3))
    assert int(state["num_batches_tracked"]) == 0


def test_a_state_without_num_batches_tracked_is_strictly_loaded(states):
    """As OneFlow wrote it before it counted; the state says no version, and torch fills it in."""
    state = states["BatchNorm2d(3)"]
    assert state["num_batches_tracked"].dtype == torch.int64
    older = state.copy()
    del older["num_batches_tracked"]
    module = nn.BatchNorm2d(3)
    module.load_state_dict(older)
    assert torch.equal(module.running_mean, state["running_mean"])


# --- for OneFlow to read ------------------------------------------------------------------------


def test_oneflow_reads_what_is_written():
    """OneFlow 0.9 described what it had loaded from the golden files."""
    assert same(value_of(golden()["back"]["value"]), state_for_oneflow())


def test_what_is_written_is_what_oneflow_has_read(tmp_path):
    save_checkpoint(state_for_oneflow(), tmp_path / "new")
    there = unpacked(golden()["back"]["files"], tmp_path / "golden")

    def contents(place: Any) -> dict[str, bytes]:
        names = {path.name for path in place.iterdir() if path.is_dir()}
        (token,) = {name.split("_")[1] for name in names}
        files = [path for path in place.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(place)).replace(token, ""): path.read_bytes().replace(
                token.encode(), b""
            )
            for path in files
        }

    assert contents(tmp_path / "new") == contents(there)


def test_a_state_comes_back_from_oneflows_format(tmp_path):
    state = state_for_oneflow()
    save_checkpoint(state, tmp_path / "a" / "b")
    found = load(tmp_path / "a" / "b")
    assert same(found, state)
    assert found["net"]._metadata == state["net"]._metadata
    assert found["tied"]["one"] is found["tied"]["other"]


def test_a_parameter_is_one_of_oneflows():
    content, tensors = pickled({"x": nn.Parameter(torch.ones(2))}, "t")
    assert b"coneflow.nn\nParameter\n" in content
    assert list(tensors) == ["t0"]


def test_an_older_checkpoint_is_replaced(tmp_path):
    save_checkpoint({"x": torch.ones(2), "y": torch.ones(1)}, tmp_path)
    (tmp_path / "mine").mkdir()
    save_checkpoint({"x": torch.zeros(2)}, tmp_path)
    assert same(load(tmp_path), {"x": torch.zeros(2)})
    assert len(list(tmp_path.iterdir())) == 3  # the pickle, one tensor, and what is not ours


def test_wherever_it_ends_the_old_checkpoint_is_whole(tmp_path, monkeypatch):
    old, new = {"x": torch.ones(2), "y": torch.ones(1)}, {"x": torch.zeros(2)}
    save_checkpoint(old, tmp_path)
    real, ended = os.replace, 0
    while True:
        left = iter(range(ended))

        def replace(*paths: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            real(*paths)

        monkeypatch.setattr(os, "replace", replace)
        try:
            save_checkpoint(new, tmp_path)
        except KeyboardInterrupt:
            assert same(load(tmp_path), old)
            ended += 1
        else:
            break
    assert ended == 3  # values, meta, and the pickle at last
    assert same(load(tmp_path), new)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": [torch.ones(1).bfloat16()]}, "state['a'][0] is of torch.bfloat16"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, "complex64"),
        ({"a": torch.ones(2).to_sparse()}, "layout"),
        ({"a": {1, 2}}, "state['a'] is a set"),
        ({"a": torch.float8_e5m2}, "state['a'] is a dtype"),
        ({(1, 2): 3}, "has a tuple as a key"),
        (nn.Linear(1, 1), "state is a Linear"),
    ],
)
def test_what_oneflow_could_not_load_is_refused(state, words, tmp_path):
    with pytest.raises(NotSavable) as error:
        save_checkpoint(state, tmp_path / "x")
    assert words in str(error.value)
    assert not (tmp_path / "x").exists()


def test_a_state_in_itself_is_refused(tmp_path):
    state: dict[str, Any] = {}
    state["self"] = [state]
    with pytest.raises(NotSavable, match="contains itself"):
        save_checkpoint(state, tmp_path)
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(NotSavable, match="deeper than 100"):
        save_checkpoint(deep, tmp_path)


# --- save and load ------------------------------------------------------------------------------


def test_the_table_has_the_names():
    assert table()["load"].value() is load
    assert table()["save"].value() is save


def test_a_state_comes_back(tmp_path):
    state = {"net": nn.BatchNorm1d(2).state_dict(), "epoch": 3, "t": (1, [2.5, None, "x"])}
    save(state, tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert same(load(str(tmp_path / "a" / "b")), state)
    save({"x": 1}, tmp_path / "a" / "b")
    save({"y": 2}, tmp_path / "a")  # beside other things
    assert load(tmp_path / "a" / "b", map_location="cpu") == {"x": 1}
    assert load(tmp_path / "a", 0) == {"y": 2}


def test_training_goes_on_from_an_optimizer_of_its_own(tmp_path):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save({"optimizer": optimizer.state_dict()}, tmp_path, consistent_dst_rank=0)
    assert same(load(tmp_path)["optimizer"], optimizer.state_dict())


def test_external_data_is_oneflows_format(tmp_path):
    save({"x": torch.ones(2)}, tmp_path, save_as_external_data=True)
    assert (tmp_path / "pickled_data").exists()
    assert same(load(tmp_path), {"x": torch.ones(2)})


def test_the_last_save_counts_whatever_its_form(tmp_path):
    for number, external in enumerate([True, False, True, False]):
        save({"x": number}, tmp_path, save_as_external_data=external)
        assert load(tmp_path) == {"x": number}


def test_two_checkpoints_in_one_directory_are_refused(tmp_path):
    save({"x": 1}, tmp_path / "one")
    save({"x": 2}, tmp_path / "two", save_as_external_data=True)
    (tmp_path / "two" / "pickled_data").rename(tmp_path / "one" / "pickled_data")
    with pytest.raises(CheckpointDamaged, match="remove the older"):
        load(tmp_path / "one")


def test_nothing_is_lost_where_a_state_cannot_be_saved(tmp_path):
    save({"x": 1}, tmp_path)
    with pytest.raises(NotSavable, match=r"state\['x'\]"):
        save({"x": object()}, tmp_path)
    assert load(tmp_path) == {"x": 1}


def test_a_file_in_place_of_the_directory_is_left(tmp_path):
    (tmp_path / "x").write_text("mine")
    for external in (True, False):
        with pytest.raises(OSError, match="written"):
            save({"x": 1}, tmp_path / "x", save_as_external_data=external)
    assert (tmp_path / "x").read_text() == "mine"


def test_an_empty_file_and_an_older_checkpoint_are_replaced(tmp_path):
    (tmp_path / "x").touch()
    for value in (1, 2):
        save({"x": value}, tmp_path / "x")
        assert (tmp_path / "x").is_file()
        assert load(tmp_path / "x") == {"x": value}


def test_a_graph_comes_back(tmp_path):
    net = nn.Linear(2, 1)
    step = tg.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))
    batch = torch.ones(3, 2), torch.zeros(3, 1)
    for _ in range(3):
        step(*batch)
    save(step, tmp_path / "graph")
    found = load(tmp_path / "graph")
    assert torch.equal(found(*batch), step(*batch))
    with pytest.raises(InvalidOption, match="devices where it was saved"):
        load(tmp_path / "graph", map_location="cpu")
    with pytest.raises(InvalidOption, match="torchgraph's own format"):
        save(step, tmp_path / "other", save_as_external_data=True)


def test_files_of_torch_are_left_to_torch(tmp_path):
    state = {"weight": torch.ones(2)}
    torch.save(state, tmp_path / "new")
    torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)

    for name in ("new", "old"):
        with pytest.raises(InvalidOption, match="weights_only=True"):
            load(tmp_path / name)


def test_map_location_moves_tensors_and_keeps_ties(tmp_path):
    x = torch.ones(2)
    save({"a": x, "b": [x], "c": nn.Linear(1, 1).state_dict()}, tmp_path)
    found = load(tmp_path, map_location="meta")
    assert found["a"].is_meta
    assert found["a"] is found["b"][0]
    assert found["c"]._metadata
    where = table()["placement"].value()("cpu", [0])
    for place in (torch.device("cpu"), tg.placement("cpu", [0]), where):
        assert load(tmp_path, map_location=place)["a"].device.type == "cpu"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: load(path, global_src_rank=1), "0 to 0"),
        (lambda path: load(path, global_src_rank=True), "a rank is a number"),
        (lambda path: load(path, 0, consistent_src_rank=0), "one option"),
        (lambda path: load(path, map_location="nowhere"), "no device"),
        (lambda path: load(path, map_location=3), "not 3"),
        (lambda path: load(3), "path"),
        (lambda path: save({}, path, -1), "0 to 0"),
        (lambda path: save({}, path, 0, consistent_dst_rank=0), "one option"),
        (lambda path: save({}, path, save_as_external_data="yes"), "True or False"),
        (lambda path: save({}, open), "path"),
    ],
)
def test_arguments_that_are_none_are_refused(call, words, tmp_path):
    with pytest.raises(InvalidOption, match=words):
        call(tmp_path)


def test_what_is_not_there_is_not_found(tmp_path):
    for path in (tmp_path / "no", tmp_path / "no" / "more"):
        with pytest.raises(FileNotFoundError):
            load(path)
    with pytest.raises(CheckpointDamaged, match="holds no checkpoint"):
        load(tmp_path)
