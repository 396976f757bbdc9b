"""Samples of indexed tokens are OneFlow's, seed by seed; broken files are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from torchgraph.errors import InvalidOption
from torchgraph.oneflow._port.errors import BadRecord, NotPorted
from torchgraph.oneflow._port.graph.graph import Graph
from torchgraph.oneflow._port.records.tokens.files import Documents
from torchgraph.oneflow._port.records.tokens.reader import GPTIndexedBinDataReader

NUMBERS = json.loads((Path(__file__).parent / "numbers" / "tokens.json").read_text())


def write(prefix: Path, dtype=np.uint16, code: int = 8) -> str:
    """What `numbers/tokens_with_oneflow.py` writes."""
    sizes = np.array(NUMBERS["lengths"], np.int32)
    tokens = np.arange(sizes.sum()).astype(dtype)
    width = tokens.dtype.itemsize
    starts = width * np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([code])
    head += len(sizes).to_bytes(8, "little") + (len(sizes) + 1).to_bytes(8, "little")
    ends = np.arange(len(sizes) + 1, dtype=np.int64)
    index = head + sizes.tobytes() + starts.tobytes() + ends.tobytes()
    prefix.with_suffix(".idx").write_bytes(index)
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
    return str(prefix)


@pytest.mark.parametrize("case", NUMBERS["cases"], ids=lambda case: str(case["given"]))
def test_samples_are_those_of_oneflow(case, tmp_path):
    samples, shuffle, seed, split, part = case["given"]
    prefix = write(tmp_path / "text")
    reader = GPTIndexedBinDataReader(
        prefix, 4, samples, 2, torch.int64, shuffle, seed, split, part, device="cpu"
    )

    rows = [row for _ in range(len(case["rows"]) // 2) for row in reader().tolist()]

    assert rows == case["rows"]


@pytest.mark.parametrize(("dtype", "code"), [(np.uint8, 1), (np.int32, 4), (np.int64, 5)])
def test_other_types_of_tokens(dtype, code, tmp_path):
    prefix = write(tmp_path / "text", dtype, code)
    reader = GPTIndexedBinDataReader(prefix, 4, 4, 2, torch.int32, shuffle=False)

    assert reader().tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert reader().dtype == torch.int32


def test_more_samples_than_there_are(tmp_path):
    reader = GPTIndexedBinDataReader(write(tmp_path / "text"), 4, 14, 7, shuffle=False)
    reader()
    reader()

    with pytest.raises(InvalidOption, match="has given all samples"):
        reader()


def test_a_graph_reads_several_micro_batches_in_a_step(tmp_path):
    prefix = write(tmp_path / "text")

    class Sums(Graph):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(5, 1)
            self.reader = GPTIndexedBinDataReader(prefix, 4, 36, 2, shuffle=False)
            self.add_optimizer(torch.optim.SGD(self.layer.parameters(), lr=0.0))
            self.config.set_gradient_accumulation_steps(3)

        def build(self):
            tokens = self.reader()
            loss = self.layer(tokens.float()).mean()
            loss.backward()
            return tokens[:, 0].sum()

    graph = Sums()
    alone = GPTIndexedBinDataReader(prefix, 4, 36, 2, shuffle=False)
    sums = [float(one) for _ in range(6) for one in graph()]

    assert sums == [float(alone()[:, 0].sum()) for _ in range(18)]
    assert graph.report().calls.programs > 0


def _moved_by_a_byte(index):
    """The first sentence begins at byte 1; sentences have two bytes for each token."""
    sentences = int.from_bytes(index[18:26], "little")
    at = 34 + 4 * sentences
    return index[:at] + b"\1" + index[at + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda idx, bin: idx.write_bytes(b"MMIDIDX"), "no index"),
        (lambda idx, bin: idx.write_bytes(idx.read_bytes()[:-9]), "cut off"),
        (lambda idx, bin: idx.write_bytes(b"X" + idx.read_bytes()[1:]), "no index"),
        (lambda idx, bin: bin.write_bytes(bin.read_bytes()[:-2]), "cut off"),
        (lambda idx, bin: idx.write_bytes(_moved_by_a_byte(idx.read_bytes())), "middle of a token"),
        (lambda idx, bin: bin.unlink(), "cannot be read"),
        (lambda idx, bin: bin.write_bytes(b""), "empty"),
    ],
)
def test_broken_files_are_refused(change, message, tmp_path):
    prefix = write(tmp_path / "text")
    change(tmp_path / "text.idx", tmp_path / "text.bin")

    with pytest.raises(BadRecord, match=message):
        Documents(prefix)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"split_sizes": (1, 1), "split_index": 2}, "split index 2 is out of range"),
        ({"split_sizes": (-1, 2)}, "no shares"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"batch_size": True}, "batch_size=True"),
    ],
)
def test_what_is_no_option(given, message):
    with pytest.raises(InvalidOption, match=re.escape(message)):
        GPTIndexedBinDataReader(**{"data_file_prefix": "x", **SMALL, **given})


SMALL = {"seq_length": 4, "num_samples": 4, "batch_size": 2}


def test_other_dtypes_are_refused():
    with pytest.raises(NotPorted, match=r"not torch\.float32"):
        GPTIndexedBinDataReader("x", **SMALL, dtype=torch.float32)
