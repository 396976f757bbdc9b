"""Records to read, a Graph that reads them, and a watch over workers."""

from __future__ import annotations

import gc
import io
import multiprocessing
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from torchgraph.oneflow._port.records.ahead import set_workers
from torchgraph.oneflow._port.records.fed import Fed
from torchgraph.oneflow._port.records.format.files import write_records
from torchgraph.oneflow._port.records.readers import OFRecordRawDecoder, OFRecordReader

COUNT, PARTS, BATCH = 64, 4, 6


def jpeg(number):
    draw = np.random.default_rng(number)
    file = io.BytesIO()
    height, width = draw.integers(18, 40, 2)
    pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """64 records in 4 files: images, labels and 5 numbers each."""
    found = tmp_path_factory.mktemp("ofrecord")
    for part in range(PARTS):
        numbers = range(part * COUNT // PARTS, (part + 1) * COUNT // PARTS)
        records = [
            {
                "encoded": jpeg(n),
                "class/label": np.int32(n % 7),
                "number": n,
                "fields": np.linspace(0, n, 5, dtype=np.float32),
            }
            for n in numbers
        ]
        write_records(found / f"part-{part:05d}", records)
    return str(found)


def reader(folder, **given: object):
    given = {"batch_size": BATCH, **given}
    return OFRecordReader(folder, data_part_num=PARTS, part_name_suffix_length=5, **given)


@pytest.fixture
def workers():
    """A choice of workers that ends with the test, as they do."""
    before = set(multiprocessing.active_children())
    yield set_workers
    set_workers(None)
    gc.collect()
    for _ in range(50):
        left = set(multiprocessing.active_children()) - before
        if not left:
            break
        time.sleep(0.1)
    assert not left
    assert not [t for t in threading.enumerate() if "torchgraph-records" in t.name]


class Numbers(Fed):
    """Reads the numbers of records, and gives them back."""

    def __init__(self, *readers: OFRecordReader):
        super().__init__()
        self.readers = nn.ModuleList(readers)
        self.decode = OFRecordRawDecoder("number", (), torch.int64)

    def build(self):
        return [self.decode(read()) for read in self.readers]
