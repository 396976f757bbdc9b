"""Directories that OneFlow would not write: refused before memory is taken, nothing followed."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.oneflow.saved_states import refused, same
from torchgraph.errors import CheckpointDamaged, CheckpointFileError
from torchgraph.oneflow._port.saved import load
from torchgraph.oneflow._port.saved.pickles import pickled


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is made."""

    def taken(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("memory is taken")

    monkeypatch.setattr(torch, "empty", taken)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with one tensor, of shape (2, 3); the folder is named ``x``."""
    place = tmp_path / "saved"
    place.mkdir()
    content, _ = pickled({"x": torch.ones(2, 3)}, "x")
    (place / "pickled_data").write_bytes(content)
    (place / "x0").mkdir()
    (place / "x0" / "meta").write_text("shape {\n  dim: 2\n  dim: 3\n}\ndata_type: kFloat\n")
    (place / "x0" / "out").write_bytes(torch.ones(2, 3).numpy().tobytes())
    return place


def test_the_directory_is_read_as_it_is(saved):
    assert same(load(saved), {"x": torch.ones(2, 3)})


@pytest.mark.parametrize(
    "meta",
    [
        "",
        "shape { dim: 2 dim: 4 } data_type: kFloat",
        "shape { dim: 2 dim: 3 } data_type: kDouble",
        "shape { dim: 2 dim: 3 }",
        "data_type: kFloat",
        "shape { dim: -2 dim: -3 } data_type: kFloat",
        "shape { dim: 2.0 dim: 3 } data_type: kFloat",
        "shape { dim: 2 dim: 3 } data_type: kOFRecord",
        "shape { dim: 2 dim: 3 } data_type: kTensorBuffer",
        "shape { dim: 2 dim: 3 } data_type: float32",
        "shape { dim: 2 dim: 3 } data_type: 99",
        "shape { dim: 2 dim: 3 } data_type: kFloat data_type: kFloat",
        "shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } data_type: kFloat",
        "shape { dim: 2 dim: 3 } data_type: kFloat more: 1",
        "shape { dim: 4611686018427387904 dim: 4 } data_type: kFloat",
        "shape { dim: 9223372036854775807 } data_type: kFloat",
        "shape { dim: 99999999999999999999999 } data_type: kFloat",
        "shape { dim: 1000000000000 } data_type: kFloat",
        "shape { dim: 0 dim: 9223372036854775807 dim: 9223372036854775807 } data_type: kFloat",
        "shape { " + "dim: 1 " * 63 + "dim: 2 dim: 3 } data_type: kFloat",
        "shape { dim: 2 dim: 3 } data_type: kFloat" + " " * 100_000,
        "shape {" + " " * 10_000 + "x",
        "\0",
        "\u0661",
    ],
)
def test_a_meta_that_does_not_fit_is_refused(meta, saved, no_memory):
    (saved / "x0" / "meta").write_text(meta, encoding="utf-8")
    refused(saved)


@pytest.mark.parametrize(
    "meta", ["shape:{dim:2,dim:3}data_type:2", "data_type: kFloat shape {dim: 2 dim: 3}"]
)
def test_a_meta_in_other_words_is_read_or_refused(meta, saved):
    (saved / "x0" / "meta").write_text(meta)
    try:
        assert same(load(saved), {"x": torch.ones(2, 3)})
    except CheckpointDamaged:
        assert "," in meta


@pytest.mark.parametrize("length", [0, 1, 23, 25, 1000])
def test_values_of_another_length_are_refused(length, saved, no_memory):
    (saved / "x0" / "out").write_bytes(bytes(length))
    assert f"its values take {length:,} bytes" in refused(saved)


def test_other_bytes_than_those_of_the_dtype_are_refused(saved):
    (saved / "x0" / "meta").write_text("shape { dim: 4 } data_type: kBool")
    (saved / "x0" / "out").write_bytes(b"\x00\x01\x02\x01")
    assert "booleans" in refused(saved)
    (saved / "x0" / "meta").write_text("shape { dim: 1 } data_type: kBFloat16")
    (saved / "x0" / "out").write_bytes(struct.pack("<f", 0.1))
    assert "bfloat16" in refused(saved)


@pytest.mark.parametrize("name", ["../secret", "/secret", ".", "..", "", "x0/../x0", "x0\0", "no"])
def test_a_name_leads_nowhere_else(name, saved):
    secret = saved.parent / "secret"
    (saved / "x0").rename(secret)
    used = str(secret) if name == "/secret" else name
    content, _ = pickled({"x": torch.ones(2, 3)}, "x")
    path = b"\x8d" + struct.pack("<Q", len(used)) + used.encode()
    content = content.replace(b"\x8d" + struct.pack("<Q", 2) + b"x0", path)
    (saved / "pickled_data").write_bytes(content)
    refused(saved)


def test_links_are_not_followed(saved):
    secret = saved.parent / "secret"
    (saved / "x0").rename(secret)
    (saved / "x0").symlink_to(secret)
    assert "is a link" in refused(saved)
    (saved / "x0").unlink()
    (saved / "x0").mkdir()
    for name in ("meta", "out"):
        (saved / "x0" / name).symlink_to(secret / name)
    assert "is a link" in refused(saved)
    content = (saved / "pickled_data").rename(secret / "pickled_data")
    (saved / "pickled_data").symlink_to(content)
    assert "is a link" in refused(saved)


def test_pipes_and_folders_in_place_of_files_are_refused(saved):
    (saved / "x0" / "out").unlink()
    assert "not whole" in refused(saved)
    os.mkfifo(saved / "x0" / "out")
    assert "no file" in refused(saved)
    (saved / "x0" / "out").unlink()
    (saved / "x0" / "out").mkdir()
    with pytest.raises((CheckpointDamaged, CheckpointFileError)):
        load(saved)


@pytest.mark.parametrize("done", ["snapshot_done", "model.mlir"])
def test_variables_of_a_directory_are_whole_or_refused(done, saved):
    (saved / "pickled_data").rename(saved / done)
    (saved / "x0").rename(saved / "layer.weight")
    assert same(load(saved), {"layer.weight": torch.ones(2, 3)})
    (saved / "layer.weight" / "meta").unlink()
    assert "'layer.weight' is not whole" in refused(saved)
    (saved / done).unlink()
    assert "holds no checkpoint" in refused(saved)


def test_a_folder_without_values_is_warned_of(saved):
    (saved / "pickled_data").rename(saved / "snapshot_done")
    (saved / "notes").mkdir()
    with pytest.warns(UserWarning, match="notes holds no variable"):
        assert list(load(saved)) == ["x0"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80))
def test_any_meta_is_read_or_refused(text, tmp_path):
    place = tmp_path / "saved"
    (place / "x").mkdir(parents=True, exist_ok=True)
    (place / "snapshot_done").touch()
    (place / "x" / "out").touch()
    (place / "x" / "meta").write_text(text, encoding="utf-8", errors="surrogatepass")
    with suppress(CheckpointDamaged):
        load(place)
