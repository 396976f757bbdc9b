"""What a `build` may not read, and errors of records that workers read."""

from __future__ import annotations

import os

import pytest
import torch

from tests.oneflow.records_kit import PARTS, Numbers, folder as folder, reader, workers as workers
from torchgraph.oneflow._port.errors import BadRecord, NotPorted
from torchgraph.oneflow._port.records.format.files import write_records
from torchgraph.oneflow._port.records.images.decoders import OFRecordImageDecoder
from torchgraph.oneflow._port.records.readers import OFRecordReader


class Chooses(Numbers):
    def build(self, which):
        read = self.readers[0] if which else self.readers[1]
        return self.decode(read())


class Leaves(Numbers):
    def build(self, which):
        return super().build() if which else [torch.ones(2)]


class SpotChecks(Numbers):
    def build(self):
        return [torch.tensor(self.readers[0]().records)]


class Takes(Numbers):
    def __init__(self, *readers: OFRecordReader):
        super().__init__(*readers)
        self.record = readers[0]()

    def build(self):
        return self.decode(self.record)


@pytest.mark.parametrize(
    ("kind", "calls", "why"),
    [
        (Chooses, [(True,), (False,)], "other data modules"),
        (Leaves, [(True,), (False,)], "other data modules"),
        (SpotChecks, [()], "'records' of what a reader"),
        (Takes, [()], "read outside of it"),
    ],
)
def test_what_is_refused(folder, workers, kind, calls, why):
    graph = kind(reader(folder, batch_size=2), reader(folder, batch_size=3))
    *good, bad = calls
    for call in good:
        graph(*call)
    with pytest.raises(NotPorted, match=why):
        graph(*bad)


@pytest.mark.parametrize("count", [0, 2])
def test_an_error_of_a_worker_comes_in_its_turn(folder, workers, tmp_path, count):
    workers(count)
    write_records(tmp_path / "part-00000", [{"number": n} for n in range(9)] + [{"other": 1}])
    for part in range(1, PARTS):
        (tmp_path / f"part-{part:05d}").write_bytes(b"")
    graph = Numbers(reader(str(tmp_path), batch_size=1))
    assert [graph()[0].item() for _ in range(9)] == list(range(9))
    for _ in range(2):
        with pytest.raises(BadRecord, match=r"record 9 of .*part-00000 has no feature") as raised:
            graph()
        assert str(raised.value).count("Fix:") == 1
    (tmp_path / "part-00000").write_bytes(b"\x01")
    graph = Numbers(reader(str(tmp_path), batch_size=1))
    for _ in range(2):  # in the first call, too, and again
        with pytest.raises(BadRecord, match="cut off"):
            graph()


def test_a_first_call_that_failed_is_begun_anew(folder, workers):
    class Fails(Numbers):
        fails = True

        def build(self):
            found = super().build()
            if self.fails:
                raise ZeroDivisionError
            return found

    graph = Fails(reader(folder, batch_size=2))
    with pytest.raises(ZeroDivisionError):
        graph()
    graph.fails = False
    assert [graph()[0].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_a_named_pipe_is_no_file_to_wait_for(tmp_path):
    os.mkfifo(tmp_path / "part-0")
    with pytest.raises(BadRecord, match="is no file"):
        OFRecordReader(str(tmp_path))()


def test_what_pillow_runs_a_program_for_is_no_image(tmp_path):
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    write_records(tmp_path / "part-0", [{"encoded": text}])
    decode = OFRecordImageDecoder("encoded")
    with pytest.raises(BadRecord, match="cannot identify"):
        decode(OFRecordReader(str(tmp_path))())
