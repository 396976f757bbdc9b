"""What a review by attack has found: each is a sentence that did not hold."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from torchgraph.artifact import files, layout, tree
from torchgraph.errors import CheckpointDamaged, NotSavable


def test_what_could_not_be_loaded_is_not_saved(tmp_path, monkeypatch):
    """A header has an end; the file before stays."""
    path = tmp_path / "state"
    tg.save({"good": 1}, path)
    monkeypatch.setattr(layout, "_HEADER", 1000)
    with pytest.raises(NotSavable, match="bytes, of 1,000 at most"):
        tg.save({"long": list(range(1000))}, path)
    assert tg.load(path) == {"good": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_save_waits_for_no_file_of_others_and_removes_none(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(files, "_clear", lambda folder, start: seen.append(start))
    tg.save({}, tmp_path / "state")
    monkeypatch.undo()
    start = seen[0]
    os.mkfifo(tmp_path / f"{start}1-00000000")
    (tmp_path / f"{start}notes").write_text("mine")
    (tmp_path / "outside").write_text("mine")
    (tmp_path / f"{start}2-00000000").symlink_to(tmp_path / "outside")
    (tmp_path / f"{start}3-00000000").write_text("left by a killed save")
    tg.save({}, tmp_path / "state")
    left = {path.name.removeprefix(start) for path in tmp_path.iterdir()}
    assert left == {"1-00000000", "notes", "2-00000000", "outside", "state"}


def test_a_checkpoint_names_a_dtype_and_nothing_else():
    before = set(sys.modules)
    for name in ("_dynamo", "compiler", "load", "float33"):
        with pytest.raises(CheckpointDamaged, match="is no dtype"):
            tree._of_dtype(name)
    assert tree._of_dtype("complex128") is torch.complex128
    assert set(sys.modules) == before


def test_numpys_numbers_are_options():
    config = tg.Graph().config
    config.set_cache_size(np.int64(3))
    config.set_gradient_accumulation_steps(np.int32(2))
    config.set_shape_buckets(np.int64(0), [np.int64(4), np.int64(8)])
    config.enable_amp(np.bool_(False))
    found = config.options
    assert (found.cache_size, found.micro_batches, found.buckets.sizes) == (3, 2, (4, 8))
    assert {type(found.cache_size), type(found.buckets.sizes[0])} == {int}


class Sliced(nn.Module):
    """It is indexed by a tuple of slices, which have no hash before Python 3.12."""

    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.randn(4, 4))

    def __getitem__(self, index):
        return self.t[index]


weights = {"a": 1.0, "b": 2.0}
k = {"left": "over"}


def test_keys_without_a_hash():
    """A slice; and a global of the name that a comprehension gives its own variable."""
    torch.manual_seed(0)
    model = Sliced()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        where = (slice(None), slice(None))
        losses = {"a": (x @ model[where]).sum(), "b": model.t.square().sum()}
        loss = sum(weights[k] * losses[k] for k in losses)
        loss.backward()
        optimizer.step()
        return loss

    step.config.set_backend("aten")
    found = [step(torch.ones(2, 4)).item() for _ in range(5)]
    assert found == sorted(found, reverse=True)


def test_a_state_without_a_name_of_the_graphs_is_refused():
    graph = tg.train_step(
        model := nn.Linear(2, 1), nn.functional.mse_loss, optim.SGD(model.parameters())
    )
    with pytest.raises(tg.errors.StateDictMismatch, match="is it the state of one of its modules"):
        graph.load_state_dict(model.state_dict(), strict=False)
