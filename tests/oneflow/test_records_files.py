"""OFRecord files: written, read, and hostile ones."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchgraph.oneflow._port.errors import BadRecord
from torchgraph.oneflow._port.records.format.files import Record, extents_in, write_records
from torchgraph.oneflow._port.records.readers import OFRecordRawDecoder, OFRecordReader

GOLDEN = Path(__file__).parent / "numbers" / "ofrecord" / "part-0"
"""Written by OneFlow's own messages."""


def records_of(path):
    return [Record(extent) for extent in extents_in(str(path))]


def test_a_file_of_oneflow():
    records = records_of(GOLDEN)
    assert len(records) == 4
    names = ["bytes", "double", "float", "jpeg", "long", "number", "png", "some"]
    assert records[0].names == names
    kind, values = records[3].feature("long")
    assert (kind, list(values)) == ("int64_list", [3, 2**40 + 3])
    assert list(records[1].feature("double")[1]) == [0.1, 1e300]
    assert records[1].one_text("bytes") == bytes([1, 255, 128])
    assert records[2].one_text("jpeg")[:2] == b"\xff\xd8"


def test_what_is_written_is_read(tmp_path):
    written = [
        {
            "label": np.int32(n),
            "narrow": np.array([n], np.uint8),
            "long": [2**40, -n],
            "float": np.array([[0.5, n]], np.float32),
            "double": 0.1,
            "text": bytes([n, 0]),
            "nothing": np.zeros(0, np.float32),
        }
        for n in range(5)
    ]
    assert write_records(tmp_path / "part-0", written) == 5
    records = records_of(tmp_path / "part-0")
    kinds = {name: records[2].feature(name) for name in written[0]}
    assert {name: (kind, list(found)) for name, (kind, found) in kinds.items()} == {
        "label": ("int32_list", [2]),
        "narrow": ("int32_list", [2]),
        "long": ("int64_list", [2**40, -2]),
        "float": ("float_list", [0.5, 2.0]),
        "double": ("double_list", [0.1]),
        "text": ("bytes_list", [b"\x02\x00"]),
        "nothing": ("float_list", []),
    }
    read = OFRecordReader(str(tmp_path), batch_size=3)
    label = OFRecordRawDecoder("label", (), torch.int64)
    assert [label(read()).tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


def test_what_is_not_written(tmp_path):
    with pytest.raises(TypeError, match="complex128"):
        write_records(tmp_path / "part-0", [{"x": 1j}])


def length(number):
    return struct.pack("<q", number)


HOSTILE = {
    "a length that is cut off": b"\x01\x02\x03",
    "nothing after the length": length(10),
    "a negative length": length(-1) + b"x" * 64,
    "the least length": length(-(2**63)),
    "an absurd length": length(2**62) + b"x" * 64,
    "a length beyond messages": length(2**31) + b"x" * 64,
    "one byte too few": length(10) + b"x" * 9,
    "no message": length(10) + b"\xff" * 10,
    "a feature that is no message": length(7) + b"\x0a\x05\x0a\x01a\x12\x09",
    "a message of another kind": length(2) + b"\x08\x01",
    "nothing at all": b"",
    "an empty message": length(0),
    "an empty feature": length(7) + b"\x0a\x05\x0a\x01a\x12\x00",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files(tmp_path, content):
    good = GOLDEN.read_bytes()
    (tmp_path / "part-0").write_bytes(content)
    (tmp_path / "part-1").write_bytes(good[: good.index(b"png")] if content else b"")
    read = OFRecordReader(str(tmp_path), data_part_num=2)
    with pytest.raises(BadRecord, match=r"(?s)part-0.*Fix: "):
        OFRecordRawDecoder("a", (), torch.int32)(read())


def test_an_error_names_file_and_record(tmp_path):
    content = GOLDEN.read_bytes()
    (tmp_path / "part-0").write_bytes(content[:-5])
    read = OFRecordReader(str(tmp_path))
    for _ in range(3):
        read()
    for _ in range(2):  # it stays so
        with pytest.raises(BadRecord, match=r"part-0 is cut off: record 3"):
            read()
    with pytest.raises(BadRecord, match=r"record 0 of .*part-0 has no feature 'x'; it has 'bytes'"):
        OFRecordRawDecoder("x", (), torch.int32)(OFRecordReader(str(tmp_path))())
    with pytest.raises(BadRecord, match=r"record 0 of .*'some' is a int32_list of 1 values"):
        OFRecordRawDecoder("some", (2,), torch.int32)(OFRecordReader(str(tmp_path))())


def test_a_file_that_shrinks_meanwhile(tmp_path):
    path = tmp_path / "part-0"
    path.write_bytes(GOLDEN.read_bytes())
    extents = list(extents_in(str(path)))
    path.write_bytes(b"")
    with pytest.raises(BadRecord, match="cut off now"):
        Record(extents[2])


@settings(max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_any_bytes(tmp_path_factory, content, at, byte):
    """A reader raises BadRecord or reads: never anything else."""
    path = tmp_path_factory.getbasetemp() / "any"
    whole = bytearray(GOLDEN.read_bytes())
    whole[at] = byte
    for tried in (content, length(len(content)) + content, bytes(whole)):
        path.write_bytes(tried)
        try:
            for record in records_of(path):
                for name in record.names:
                    record.feature(name)
        except BadRecord:
            pass


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(
            st.binary(max_size=9),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4).map(
                lambda values: np.array(values, np.int64)
            ),
            st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(
                lambda values: np.array(values, np.float32)
            ),
        ),
        max_size=4,
    )
)
def test_any_features(tmp_path_factory, features):
    path = tmp_path_factory.getbasetemp() / "features"
    write_records(path, [features])
    (record,) = records_of(path)
    assert record.names == sorted(features)
    for name, value in features.items():
        kind, found = record.feature(name)
        expected = [value] if kind == "bytes_list" else value.tolist()
        assert list(found) == expected


def test_a_package_that_is_missing():
    code = (
        "import sys; sys.modules['google.protobuf'] = None\n"
        "import torchgraph.oneflow._port.records.fed\n"
        "import torchgraph.oneflow._port.records.images.arrangers\n"
        "from torchgraph.oneflow._port.errors import MissingPackage\n"
        "try:\n"
        "    import torchgraph.oneflow._port.records.readers\n"
        "except MissingPackage as error:\n"
        "    print(error)\n"
        "del sys.modules['google.protobuf']; sys.modules['PIL'] = None\n"
        "try:\n"
        "    import torchgraph.oneflow._port.records.images.decoders\n"
        "except MissingPackage as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "protobuf is needed" in done.stdout
    assert "Pillow" in done.stdout
    assert done.stdout.count("pip install 'torch-nn-graph[oneflow]'") == 2
