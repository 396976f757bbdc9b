"""Pickles that OneFlow would not write: refused, with nothing run and little memory taken."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.oneflow.saved_states import checkpoint, refused, same, state_for_oneflow
from torchgraph.errors import CheckpointDamaged
from torchgraph.oneflow._port.saved import load, save_checkpoint
from torchgraph.oneflow._port.saved.pickles import pickled, read

EXAMPLES = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FEW = settings(EXAMPLES, max_examples=80)
RAN: list[str] = []
HEAD = b"\x80\x04}(\x8c\x10protocol_versionK\x01\x8c\x04data"
"""A pickle of OneFlow's up to its data, which ``u.`` ends."""


def ran() -> None:
    """What an unpickler would call."""
    RAN.append("run")


class Attack:
    """Runs as it is unpickled."""

    def __reduce__(self) -> Any:
        return ran, ()


def wrapped(value: Any, **more: Any) -> bytes:
    return pickle.dumps({"protocol_version": 1, "__oneflow__": None, "data": value}, **more)


def refused_content(content: bytes, tmp_path: Path) -> str:
    """The words for a single file, and for the pickle of a directory."""
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "saved").mkdir(exist_ok=True)
    (tmp_path / "saved" / "pickled_data").write_bytes(content)
    refused(tmp_path / "saved")
    return refused(tmp_path / "file")


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Attack(), id="attack"),
        os.system,
        Path("x"),
        {1, 2},
        torch.ones(2),
        np.array([None]),
        np.array(["x"]),
        np.zeros(2, dtype=[("a", "f4")]),
        np.array([1.0], dtype=">f4"),
        np.datetime64("2020-01-01"),
        range(3),
        slice(1),
        bytearray(b"x"),
        {(1, 2): 3},
        {2**100: 3},
    ],
    ids=repr,
)
def test_what_is_no_plain_value_is_refused(value, protocol, tmp_path):
    refused_content(wrapped([1, {"x": value}], protocol=protocol), tmp_path)
    assert RAN == []


def test_the_attack_would_run():
    pickle.loads(wrapped(Attack()))
    assert RAN.pop() == "run"


def test_a_global_is_named(tmp_path):
    words = refused_content(wrapped(os.system), tmp_path)
    assert "'system'" in words
    assert "none of OneFlow's" in words
    refused_content(HEAD + b"cthis\ns\nu.", tmp_path)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n(S'true'\ntR",  # calls of protocol 0
        b"(S'true'\nios\nsystem\n",
        b"\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R",
        b"\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R",
        b"ccollections\nOrderedDict\n]\x8c\x01x\x86aR",
        b"ccollections\nOrderedDict\n)R}\x8c\x05clear\x8c\x01xsb",  # attributes of its own
        b"coneflow\nTensor\n\x8c\x01x\x85\x81",
        b"coneflow\nTensor\n)\x81}\x8c\x04path]sb",
        b"coneflow\nTensor\n)\x81}\x8c\x04path\x8c\x01xsb}b",  # a state twice
        b"coneflow\nTensor\n)\x81",
        b"coneflow\nTensor\n",
        b"coneflow.Tensor\n__init__\n",
        b"coneflow\nTensor.__init__\n",
        b"coneflow._oneflow_internal\ndtype\n)\x81K\x63b",
        b"coneflow._oneflow_internal\ndtype\n)\x81",
        b"cnumpy\nndarray\n",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R",
        b"coneflow\nSize\nJ\xff\xff\xff\xff\x85\x85\x81",
        b"coneflow\nSize\n\x8c\x01x\x85\x81",
        b"cbuiltins\ndict\n](K\x01\x85K\x02\x86e\x85R",  # a tuple as a key
        b"}N}\x8c\x09__class__cbuiltins\ndict\ns\x86b",  # attributes of a dict, a class, a list
        b"coneflow\nTensor\nN}\x8c\x05stateconeflow\nTensor\ns\x86b",
        b"coneflow\nTensor\n}\x8c\x01xNsb",
        b"]}\x8c\x01xNsb",
        b"coneflow\nTensor\n)\x81Na",
        b"coneflow\nTensor\n)}\x92",
        b"\x97",
        b"\x97\x98",
        b"Nr\xff\xff\xff\x0f",  # memory for 2**29 values
        b"\x80\x04Q",
        b"P1\n",
        b"\x82\x01",
        b"2",
        b"0",
        b"h\x63",
        b"(",
        b"e",
        b"a",
        b"u",
        b"s",
        b"t",
        b"\x87",
        b"b",
        b"R",
        b"\x81",
        b"\x92",
        b"\x93",
        b"(K\x01K\x02}u",
        b"](K\x01K\x02u",
        b"}(K\x01u",
        b"K\x01K\x02",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",  # bytes of 2**63
        b"\x8b\xff\xff\xff\x7f",  # a number of 2**31 bytes
        b"r\xff\xff\xff\xff",
        b"",
    ],
)
def test_opcodes_that_no_checkpoint_needs_are_refused(body, tmp_path):
    refused_content(HEAD + body + b"u.", tmp_path)
    refused_content(b"\x80\x04" + body + b".", tmp_path)


def test_frames_end_anywhere(tmp_path):
    """The unpickler and `pickletools` would take different bytes for what follows."""
    for size in (0, 3, 2**40, 2**64 - 1):
        frame = b"\x95" + struct.pack("<Q", size)
        (tmp_path / "file").write_bytes(HEAD + frame + b"\x8c\x05abcdeu.")
        assert load(tmp_path / "file") == "abcde"


def test_a_pickle_that_is_deep_wide_or_in_itself_is_refused(tmp_path):
    for opening in (b"]" * 50_000 + b"a" * 49_999, b"N" + b"\x85" * 50_000):
        assert "deeper" in refused_content(HEAD + opening + b"u.", tmp_path)
    assert "itself" in refused_content(HEAD + b"]r\x00\x00\x00\x00j\x00\x00\x00\x00au.", tmp_path)


def test_what_is_shared_stays_shared(tmp_path):
    """A list of two of the list before: 2**90 values when each is one of its own."""
    value: Any = []
    for _ in range(90):
        value = [value, value]
    (tmp_path / "few").write_bytes(wrapped(value))
    found = load(tmp_path / "few")
    assert found[0] is found[1]
    for _ in range(60):
        value = [value, value]
    assert "deeper" in refused_content(wrapped(value), tmp_path)


def array(data: bytes, count: int) -> bytes:
    """The opcodes of an array of bytes."""
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01J"
        + struct.pack("<i", count)
        + b"\x85cnumpy\ndtype\n\x8c\x02u1\x89\x88\x87R(K\x03\x8c\x01|NNNK\x00K\x00K\x00tb\x89"
        + data
        + b"tb"
    )


def test_one_array_in_many_places_is_refused(tmp_path):
    """Each has the same bytes, which the file has once."""
    count = 100_000
    data = b"\x8e" + struct.pack("<Q", count) + bytes(count) + b"r\x00\x00\x00\x00"
    first = array(data, count)
    (tmp_path / "one").write_bytes(HEAD + first + b"u.")
    assert np.array_equal(load(tmp_path / "one"), np.zeros(count, np.uint8))
    again = array(b"j\x00\x00\x00\x00", count) * 1000
    assert "many places" in refused_content(HEAD + b"](" + first + again + b"eu.", tmp_path)
    assert "number of bytes" in refused_content(HEAD + array(data, 10**9) + b"u.", tmp_path)
    text = b"](X" + struct.pack("<I", count) + bytes(count) + b"r\x00\x00\x00\x00"
    encoded = b"c_codecs\nencode\nj\x00\x00\x00\x00\x8c\x06latin1\x86R"
    (tmp_path / "one").write_bytes(HEAD + text + encoded + b"eu.")
    assert load(tmp_path / "one") == ["\0" * count, bytes(count)]
    assert "many places" in refused_content(HEAD + text + encoded * 1000 + b"eu.", tmp_path)


@pytest.mark.parametrize(
    "content",
    [{"data": 1}, {"protocol_version": 2, "data": 1}, [1], {"protocol_version": 1}, 3, None],
)
def test_a_pickle_of_another_kind_is_refused(content, tmp_path):
    refused_content(pickle.dumps(content), tmp_path)


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> bytes:
    return checkpoint("single", tmp_path_factory.mktemp("single") / "saved").read_bytes()


@EXAMPLES
@given(data=st.data())
def test_a_changed_pickle_is_read_or_refused(data, single):
    """Cut, bytes changed, parts twice: a state of plain values comes back, or the one error."""
    content = bytearray(single)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["change", "cut", "twice", "drop"]))
        if kind == "change":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "cut" and data.draw(st.booleans()):
            del content[place:]
        elif kind == "twice":
            content[place:place] = content[place : place + 20]
        else:
            del content[place : place + 3]
        if not content:
            break
    with suppress(CheckpointDamaged):
        read(bytes(content))


@EXAMPLES
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content):
    with suppress(CheckpointDamaged):
        read(b"\x80\x04" + content)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([torch.float32, torch.bool, torch.Size([2, 0])]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**63 - 1), inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
    ),
    max_leaves=20,
)


@FEW
@given(value=VALUES)
def test_plain_values_come_back(value, tmp_path):
    save_checkpoint(value, tmp_path / "saved")
    assert same(load(tmp_path / "saved"), value)


def test_a_tensor_of_a_directory_has_no_place_in_a_file(tmp_path):
    content, _ = pickled(state_for_oneflow(), "x")
    (tmp_path / "file").write_bytes(content)
    assert "there are no folders" in refused(tmp_path / "file")
