"""Readers, decoders and image modules beside what OneFlow 0.9 gave: numbers/records.json."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchgraph.errors import InvalidOption
from torchgraph.oneflow._port.errors import BadRecord, NotPorted
from torchgraph.oneflow._port.records.images import arrangers, decoders
from torchgraph.oneflow._port.records.images.pixels import Crops
from torchgraph.oneflow._port.records.readers import (
    CoinFlip,
    OFRecordBytesDecoder,
    OFRecordRawDecoder,
    OFRecordReader,
)

NUMBERS = Path(__file__).parent / "numbers"
FOLDER = str(NUMBERS / "ofrecord")
FOUND: dict[str, Any] = json.loads((NUMBERS / "records.json").read_text(encoding="utf-8"))


def reader(**given: object):
    return OFRecordReader(FOLDER, data_part_num=3, **given)


def sum_of(found):
    array = np.ascontiguousarray(found)
    return [list(array.shape), str(array.dtype), zlib.crc32(array.tobytes())]


def decoded(color_space="RGB", dtype=torch.uint8):
    texts = OFRecordBytesDecoder("png")(reader(batch_size=12)())
    return decoders.ImageDecode(dtype, color_space)(texts)


@pytest.mark.parametrize(("given", "order"), FOUND["orders"], ids=str)
def test_records_come_in_the_order_of_oneflow(given, order):
    read, decode = reader(**given), OFRecordRawDecoder("number", (), torch.int32)
    assert [decode(read()).tolist() for _ in order] == order


@pytest.mark.parametrize(("name", "shape", "dtype", "given", "values"), FOUND["raw"], ids=str)
def test_raw_features(name, shape, dtype, given, values):
    dtype = getattr(torch, dtype)
    made = OFRecordRawDecoder(name, shape, dtype, **given)(reader(batch_size=12)())
    assert made.dtype == dtype
    assert made.tolist() == values


@pytest.mark.parametrize("case", FOUND["resized"], ids=lambda case: str(case[0]))
def test_resize(case):
    given, sums, scales, *sizes = case
    made, found, size = decoders.ImageResize(**given)(decoded())
    if sizes:
        assert [sum_of(image) for image in made.numpy()] == sums
        assert size.tolist() == sizes[0]
    else:
        assert sum_of(made.numpy()) == sums
        assert size is None
    assert found.tolist() == scales


MIRROR = torch.tensor([1, 0, -1, 2] * 3, dtype=torch.int8)


@pytest.mark.parametrize(("given", "mirrored", "layout", "expected"), FOUND["normalized"], ids=str)
def test_crop_mirror_normalize(given, mirrored, layout, expected, monkeypatch):
    if layout == "NHWC":
        monkeypatch.setenv("ONEFLOW_ENABLE_NHWC", "1")
    images = decoders.ImageResize(target_size=[14, 10])(decoded())[0]
    made = arrangers.CropMirrorNormalize("RGB", **given)(images, MIRROR if mirrored else None)
    assert sum_of(made.numpy()) == expected


def test_crop_of_images_of_several_sizes():
    given, expected = FOUND["cut"]
    images = decoders.ImageResize(target_size=12, keep_aspect_ratio=True)(decoded())[0]
    made = arrangers.CropMirrorNormalize("RGB", **given)(images)
    assert sum_of(made.numpy()) == expected
    with pytest.raises(NotPorted, match="smaller"):
        arrangers.CropMirrorNormalize("RGB", crop_h=13, crop_w=7)(images)


def test_other_image_modules():
    found = FOUND["others"]
    codes = torch.tensor([0, 1, 2, 3] * 3, dtype=torch.int8)
    floats = decoded(dtype=torch.float32)
    normal = arrangers.ImageNormalize([2.0, 3.0, 7.0], [1.5, 2.5, 3.5])(floats)
    assert [sum_of(one) for one in decoded().numpy()] == found["png"]
    assert [sum_of(one) for one in decoded("BGR").numpy()] == found["png, BGR"]
    assert [sum_of(one) for one in arrangers.ImageFlip()(decoded(), codes).numpy()] == found["flip"]
    assert [sum_of(one) for one in normal.numpy()] == found["normalize"]
    align = arrangers.ImageBatchAlign((32, 36, 3), torch.float32, 4)
    assert sum_of(align(floats).numpy()) == found["batch_align"]
    for shape in ((32, 33, 3), (40, 36, 3), (28, 36, 3)):
        with pytest.raises(NotPorted, match="largest"):
            arrangers.ImageBatchAlign(shape, torch.float32, 4)(floats)


def test_jpegs_are_decoded_alike():
    """Within what two builds of libjpeg differ by; the same build gives the same bytes."""
    made = decoders.OFRecordImageDecoder("jpeg", "RGB")(reader(batch_size=12)())
    for one, expected in zip(made.numpy(), FOUND["others"]["jpeg"], strict=True):
        assert np.abs(one[::4, ::4].astype(int) - np.array(expected)).max() <= 2


def test_random_parts_have_the_range_of_area_and_ratio():
    draw, crops = np.random.default_rng(0), Crops(10, (0.2, 0.5), (0.75, 1.25))
    shares, ratios = [], []
    for _ in range(400):
        rows, columns = crops.window(200, 240, draw)
        tall, wide = rows.stop - rows.start, columns.stop - columns.start
        assert 0 <= rows.start <= rows.stop <= 200
        assert 0 <= columns.start <= columns.stop <= 240
        shares.append(tall * wide / (200 * 240))
        ratios.append(wide / tall)
    assert 0.19 < min(shares) < 0.23
    assert 0.47 < max(shares) < 0.51
    assert 0.75 <= min(ratios) < 0.77
    assert 1.22 < max(ratios) <= 1.25
    assert abs(np.mean(shares) - 0.35) < 0.01
    assert abs(np.mean(np.log(ratios)) - np.log([0.75, 1.25]).mean()) < 0.02


@pytest.mark.parametrize(
    ("size", "expected"),
    [((10, 100), (10, 13)), ((100, 10), (13, 10)), ((1, 1), (1, 1)), ((30, 37), (30, 37))],
)
def test_what_is_cut_where_no_part_fits(size, expected):
    """All of the shorter side, and the ratio that is nearest."""
    crops = Crops(0 if size == (30, 37) else 10, (1.0, 1.0), (0.75, 4 / 3))
    rows, columns = crops.window(*size, np.random.default_rng(0))
    assert (rows.stop - rows.start, columns.stop - columns.start) == expected


def test_random_crop_and_resize_of_bytes():
    texts = OFRecordBytesDecoder("png")(reader(batch_size=12)())
    whole = decoders.OFRecordImageGpuDecoderRandomCropResize(
        8, 8, random_area=[1.0, 1.0], random_aspect_ratio=[0.1, 10.0]
    )
    made = whole(texts)
    expected = decoders.ImageResize(target_size=[8, 8], interpolation_type="bilinear")(decoded())[0]
    assert torch.equal(made[3], expected[3])  # of a square nothing else has the whole area
    again = decoders.OFRecordImageDecoderRandomCrop("png", "RGB", random_seed=1)
    first, second = (
        decoders.OFRecordImageDecoderRandomCrop("png", "RGB", random_seed=1)(
            reader(batch_size=12)()
        )
        for _ in range(2)
    )
    for one, other, part in zip(first.numpy(), second.numpy(), decoded().numpy(), strict=True):
        assert np.array_equal(one, other)
        assert one.size <= part.size
    records = reader(batch_size=12)()
    shapes = [[one.shape for one in again(records).numpy()] for _ in range(2)]
    assert shapes[0] != shapes[1]


def test_coin_flips():
    flip = CoinFlip(2000, random_seed=3, probability=0.3)
    made = flip()
    assert made.dtype == torch.int8
    assert made.shape == (2000,)
    assert 0.25 < made.float().mean() < 0.35
    assert not torch.equal(made, flip())
    assert torch.equal(made, CoinFlip(2000, random_seed=3, probability=0.3)())


REFUSED = [
    (NotPorted, lambda: OFRecordReader(FOLDER, device="cuda")),
    (InvalidOption, lambda: OFRecordReader(FOLDER, batch_size=0)),
    (InvalidOption, lambda: OFRecordReader(FOLDER, random_shuffle=True, shuffle_buffer_size=0)),
    (NotPorted, lambda: OFRecordRawDecoder("number", (), torch.float16)),
    (NotPorted, lambda: decoders.OFRecordImageDecoder("jpeg", "GRAY")),
    (NotPorted, lambda: decoders.ImageDecode(torch.float64)),
    (InvalidOption, lambda: decoders.ImageResize(target_size=[4, 4], interpolation_type="best")),
    (InvalidOption, lambda: decoders.ImageResize(target_size=4)),
    (InvalidOption, lambda: decoders.ImageResize(target_size=[4, 4], keep_aspect_ratio=True)),
    (
        InvalidOption,
        lambda: decoders.ImageResize(target_size=4, keep_aspect_ratio=True, min_size=5),
    ),
    (NotPorted, lambda: decoders.ImageResize(target_size=[4, 4], channels=1)),
    (NotPorted, lambda: arrangers.CropMirrorNormalize(output_dtype=torch.float16)),
    (NotPorted, lambda: arrangers.CropMirrorNormalize("XYZ")),
    (
        NotPorted,
        lambda: arrangers.CropMirrorNormalize(mean=[1.0, 2.0])(
            torch.zeros(1, 2, 2, 3, dtype=torch.uint8)
        ),
    ),
    (NotPorted, lambda: arrangers.CropMirrorNormalize()(torch.zeros(1, 2, 2, 3))),
    (
        NotPorted,
        lambda: arrangers.CropMirrorNormalize()(
            torch.zeros(2, 2, 2, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int8)
        ),
    ),
    (NotPorted, lambda: decoders.ImageResize(target_size=[4, 4])(torch.zeros(1, 2, 2, 3))),
    (NotPorted, lambda: OFRecordRawDecoder("number", (), torch.int32)(torch.zeros(1))),
    (NotPorted, lambda: decoders.ImageResize(target_size=[4, 4])(decoded(dtype=torch.float32))),
    (BadRecord, lambda: OFRecordBytesDecoder("number")(reader()())),
    (BadRecord, lambda: decoders.OFRecordImageDecoder("bytes")(reader()())),
    (BadRecord, lambda: decoders.OFRecordImageDecoder("nothing")(reader()())),
    (BadRecord, lambda: OFRecordReader(FOLDER, data_part_num=4, batch_size=13)()),
    (BadRecord, lambda: OFRecordReader(FOLDER, part_name_suffix_length=5)()),
]


@pytest.mark.parametrize(("error", "made"), REFUSED)
def test_what_is_refused(error, made):
    with pytest.raises(error):
        made()


def test_older_names_of_resize():
    images = decoded()
    older = decoders.ImageResize(resize_x=7, resize_y=5, interp_type="NN", color_space="rgb")
    newer = decoders.ImageResize(target_size=(7, 5), interpolation_type="nearest_neighbor")
    assert torch.equal(older(images)[0], newer(images)[0])
    shorter = decoders.ImageResize(resize_shorter=9)(images)
    assert all(min(one.shape[:2]) == 9 for one in shorter[0].numpy())
