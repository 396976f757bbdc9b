"""``tg.load`` of files that are damaged, forged, or somebody else's: each is refused."""

import copy
import hashlib
import json
import pickle
import random
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import torchgraph as tg
from tests.contract.models import Net
from torchgraph.artifact import tree
from torchgraph.errors import CheckpointDamaged


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "state"
    tg.save({"model": Net().state_dict(), "n": 3, "wide": torch.ones(4, 4).t()}, path)
    return path.read_bytes()


def refused(content, folder, match=None):
    (folder / "bad").write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=match) as found:
        tg.load(folder / "bad")
    assert str(folder / "bad") in str(found.value)


def header_of(content):
    return 8 + int.from_bytes(content[:8], "little")


def test_a_flipped_bit_is_found_wherever_it_is(good, tmp_path):
    chance = random.Random(0)
    length = header_of(good)
    places = [*range(0, 120), *chance.sample(range(120, len(good)), 150), length - 1, length]
    for place in [*places, len(good) - 1]:
        content = bytearray(good)
        content[place] ^= 1 << chance.randrange(8)
        refused(content, tmp_path)


@pytest.mark.slow
def test_each_flipped_bit_is_found(good, tmp_path):
    for place in range(len(good)):
        for bit in range(8):
            content = bytearray(good)
            content[place] ^= 1 << bit
            refused(content, tmp_path)


def test_what_is_cut_or_longer_is_found(good, tmp_path):
    chance = random.Random(1)
    for length in [*range(10), *chance.sample(range(10, len(good)), 50), len(good) - 1]:
        refused(good[:length], tmp_path)
    refused(good + b"\0", tmp_path, "after its end")
    refused(good + good, tmp_path, "after its end")
    refused(good[:500] + good[508:], tmp_path)


def test_other_files_are_told_what_they_are(tmp_path):
    torch.save({"x": torch.ones(1)}, tmp_path / "new")
    torch.save({"x": 1}, tmp_path / "old", _use_new_zipfile_serialization=False)
    save_file({"x": torch.ones(1)}, tmp_path / "safe")
    for name in ("new", "old"):
        refused((tmp_path / name).read_bytes(), tmp_path, r"torch\.load")
    refused((tmp_path / "safe").read_bytes(), tmp_path, "load_file")
    refused(b"", tmp_path, "empty")
    refused(b"hello, world", tmp_path)


class Mark:
    """Unpickling it leaves a mark."""

    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def test_no_pickle_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(pickle.dumps(Mark()), tmp_path)
    assert not Path("unpickled").exists()


def forged(header, rest=b""):
    """A file with the right checksum around any header."""
    metadata = {"sha256": "0" * 64, "torchgraph": "1", **header.pop("__metadata__", {})}
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text + rest
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


TREES = {
    "missing tensor": '{"tensor": "x"}',
    "unknown kind": '{"pickle": "x"}',
    "no json": "{",
    "nothing": "",
    "deep": "[" * 100_000,
    "deep, closed": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"tuple": [' * 300 + "]}" * 300,
    "twice": '{"dict": [["a", 1], ["a", 2]]}',
    "twice in json": '{"dict": [], "dict": []}',
    "a list as a key": '{"dict": [[[], 1]]}',
    "a constant": "NaN",
    "a long number": "1" * 5000,
    "a dtype that is none": '{"dtype": "load"}',
    "a dtype with dots": '{"dtype": "nn.Module"}',
    "a device": '{"device": "nowhere"}',
    "a float": '{"float": "x"}',
    "a pair": '{"dict": [1]}',
    "no key": "{}",
    "a size": '{"Size": ["x"]}',
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_that_makes_no_sense_is_refused(name, tmp_path):
    refused(forged({"__metadata__": {"tree": TREES[name]}}), tmp_path)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HEADERS = {
    "gigabytes": {"x": entry(shape=[2**38], offsets=[0, 2**40])},
    "an overflow": {"x": entry(shape=[2**62, 2**62, 0], offsets=[0, 0])},
    "negative": {"x": entry(shape=[-1, -1], offsets=[0, 4])},
    "a bool": {"x": entry(shape=[True])},
    "an overlap": {"x": entry(), "y": entry()},
    "a gap": {"x": entry(offsets=[4, 8])},
    "a dtype": {"x": entry(dtype="F33")},
    "a list": {"x": []},
    "unused": {"x": entry()},
    "no tree": {"__metadata__": {"tree": 3}},
    "a version": {"__metadata__": {"torchgraph": "2"}},
    "strides": {
        "x": entry(), "__metadata__": {"tree": '{"tensor": "x", "strides": [1000000000000]}'}
    },
    "a shape": {
        "x": entry("U8", [4]),
        "__metadata__": {
            "tree": '{"tensor": "x", "dtype": "complex128", "shape": [1000000000000]}'
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_makes_no_sense_is_refused(name, tmp_path):
    header = copy.deepcopy(HEADERS[name])
    header.setdefault("__metadata__", {}).setdefault("tree", "1")
    refused(forged(header, b"1234"), tmp_path)


def test_a_header_longer_than_the_file_allocates_nothing(tmp_path):
    for length in (2**63, 10**9, 2**64 - 1, 9):
        refused(length.to_bytes(8, "little") + b'{"__metad', tmp_path)


def test_what_is_forged_well_is_read(tmp_path):
    content = forged({"x": entry(), "__metadata__": {"tree": '{"tensor": "x"}'}}, b"\0\0\x80\x3f")
    (tmp_path / "good").write_bytes(content)
    assert tg.load(tmp_path / "good").tolist() == [1.0]


def test_a_checkpoint_names_a_dtype_and_nothing_else():
    before = set(sys.modules)
    for name in ("_dynamo", "compiler", "load", "float33"):
        with pytest.raises(CheckpointDamaged, match="is no dtype"):
            tree._of_dtype(name)
    assert tree._of_dtype("complex128") is torch.complex128
    assert set(sys.modules) == before
