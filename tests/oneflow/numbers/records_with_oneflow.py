"""Writes ofrecord/part-0 to part-2 and records.json with real OneFlow 0.9 on the CPU.

Runs under Python 3.10 with ``oneflow==0.9.0``, ``numpy<2`` and Pillow; nothing of torchgraph:
``python records_with_oneflow.py``.
"""

import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import oneflow as flow
import oneflow.core.record.record_pb2 as pb
from PIL import Image

HERE = Path(__file__).parent
FOLDER = HERE / "ofrecord"
SIZES = [(12, 16), (9, 21), (20, 13), (16, 16), (5, 7), (25, 8), (10, 30), (31, 29), (8, 8)]
SIZES += [(14, 3), (24, 33), (11, 11)]


def picture(number, height, width):
    y, x = np.mgrid[0:height, 0:width]
    parts = [127 + 100 * np.sin(x / 3 + y / 5 + number), (x * 13 + y * 7) % 256, x * y % 251]
    return Image.fromarray(np.clip(np.stack(parts, -1), 0, 255).astype(np.uint8))


def encoded(image, kind, **options: object):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def record(number):
    found = pb.OFRecord()
    image = picture(number, *SIZES[number])
    features = {
        "number": ("int32_list", [number]),
        "long": ("int64_list", [number, 2**40 + number]),
        "float": ("float_list", [1.5 * number, -2.75]),
        "double": ("double_list", [0.1 * number, 1e300]),
        "bytes": ("bytes_list", [bytes([number, 255, 128])]),
        "some": ("int32_list", list(range(number % 4 + 1))),
        "png": ("bytes_list", [encoded(image, "PNG")]),
        "jpeg": ("bytes_list", [encoded(image, "JPEG", quality=90)]),
    }
    for name, (kind, values) in features.items():
        getattr(found.feature[name], kind).value.extend(values)
    return found.SerializeToString()


def write():
    FOLDER.mkdir(exist_ok=True)
    for part in range(3):
        with open(FOLDER / f"part-{part}", "wb") as file:
            for number in range(4 * part, 4 * part + 4):
                payload = record(number)
                file.write(struct.pack("<q", len(payload)) + payload)


def reader(**given: object):
    return flow.nn.OFRecordReader(str(FOLDER), data_part_num=3, **given)


def orders():
    settings = [
        {"batch_size": 5},
        {"batch_size": 25},
        {"batch_size": 4, "shuffle_after_epoch": True},
        {"batch_size": 5, "random_shuffle": True, "shuffle_buffer_size": 4, "random_seed": 5},
        {"batch_size": 5, "random_shuffle": True, "random_seed": 5},
        {"batch_size": 3, "random_shuffle": True, "shuffle_buffer_size": 7, "random_seed": -5},
        {"batch_size": 3, "random_shuffle": True, "shuffle_buffer_size": 1, "random_seed": 0},
        {
            "batch_size": 3,
            "random_shuffle": True,
            "shuffle_buffer_size": 6,
            "random_seed": 2**33 + 5,
            "shuffle_after_epoch": True,
        },
    ]
    decode = flow.nn.OFRecordRawDecoder("number", (), flow.int32)
    found = []
    for given in settings:
        read = reader(**given)
        found.append([given, [decode(read()).numpy().tolist() for _ in range(16)]])
    return found


def raw():
    records = reader(batch_size=12)()
    asked = [
        ("number", [], "int32"),
        ("number", [1], "float32"),
        ("long", [2], "int64"),
        ("long", [2, 1], "int32"),
        ("long", [2], "int8"),
        ("float", [2], "float32"),
        ("float", [2], "int32"),
        ("float", [2], "float64"),
        ("double", [2], "float64"),
        ("bytes", [3], "int8"),
        ("bytes", [3], "uint8"),
        ("bytes", [3], "float32"),
    ]
    found = []
    for name, shape, dtype in asked:
        made = flow.nn.OFRecordRawDecoder(name, shape, getattr(flow, dtype))(records)
        found.append([name, shape, dtype, {}, made.numpy().tolist()])
    # Where dim1_varying_length fills up, there is what the memory held before.
    for given in ({"truncate": True}, {"auto_zero_padding": True}):
        made = flow.nn.OFRecordRawDecoder("some", [3], flow.int32, **given)(records)
        found.append(["some", [3], "int32", given, made.numpy().tolist()])
    return found


def sum_of(array):
    array = np.ascontiguousarray(array)
    return [list(array.shape), str(array.dtype), zlib.crc32(array.tobytes())]


def decoded(color_space="RGB", dtype=flow.uint8):
    texts = flow.nn.OFRecordBytesDecoder("png")(reader(batch_size=12)())
    return flow.nn.image.decode(dtype=dtype, color_space=color_space)(texts)


def resized():
    images, found = decoded(), []
    for kind in ("auto", "bilinear", "nearest_neighbor", "bicubic", "area"):
        for size in ([16, 12], [7, 9], [30, 10], [8, 8], [40, 41], [3, 25]):
            given = {"target_size": size, "interpolation_type": kind}
            made, scales, _ = flow.nn.image.Resize(**given)(images)
            found.append([given, sum_of(made.numpy()), scales.numpy().tolist()])
    for given in (
        {"target_size": 15},
        {"target_size": 15, "resize_side": "longer"},
        {"target_size": 11, "max_size": 20},
        {"target_size": 17, "resize_side": "longer", "min_size": 9},
        {"target_size": 10, "resize_side": "longer", "interpolation_type": "bilinear"},
    ):
        given["keep_aspect_ratio"] = True
        made, scales, sizes = flow.nn.image.Resize(**given)(images)
        sums = [sum_of(image) for image in made.numpy()]
        found.append([given, sums, scales.numpy().tolist(), sizes.numpy().tolist()])
    return found


MEAN, STD = [123.68, 116.779, 103.939], [58.393, 57.12, 57.375]


def normalized():
    images = flow.nn.image.Resize(target_size=[14, 10])(decoded())[0]
    mirror = flow.tensor(np.array([1, 0, -1, 2] * 3, np.int8))
    found = []
    for given in (
        {},
        {"mean": MEAN, "std": STD},
        {"mean": MEAN, "std": STD, "crop_h": 5, "crop_w": 9},
        {"mean": [3.0], "std": STD, "crop_h": 5, "crop_w": 9, "crop_pos_y": 0.3, "crop_pos_x": 0.8},
        {
            "mean": MEAN,
            "std": [2.0],
            "crop_h": 5,
            "crop_w": 9,
            "crop_pos_y": 1.0,
            "crop_pos_x": 0.1,
        },
        {"crop_h": 5},
        {"crop_h": 5, "crop_w": 99},
    ):
        for flips in (None, mirror):
            made = flow.nn.CropMirrorNormalize(color_space="RGB", **given)(images, flips)
            found.append([given, flips is not None, "NCHW", sum_of(made.numpy())])
    os.environ["ONEFLOW_ENABLE_NHWC"] = "1"  # noqa: TID251 # of OneFlow
    given = {"mean": MEAN, "std": STD, "crop_h": 5, "crop_w": 9}
    made = flow.nn.CropMirrorNormalize(color_space="RGB", **given)(images, mirror)
    found.append([given, True, "NHWC", sum_of(made.numpy())])
    del os.environ["ONEFLOW_ENABLE_NHWC"]  # noqa: TID251
    return found


def cut_from_several_sizes():
    given = {"target_size": 12, "keep_aspect_ratio": True}
    images = flow.nn.image.Resize(**given)(decoded())[0]
    given = {"mean": MEAN, "std": STD, "crop_h": 11, "crop_w": 7}
    return [given, sum_of(flow.nn.CropMirrorNormalize(color_space="RGB", **given)(images).numpy())]


def others():
    floats = decoded(dtype=flow.float)
    codes = flow.tensor(np.array([0, 1, 2, 3] * 3, np.int8))
    normal = flow.nn.image.normalize([2.0, 3.0, 7.0], [1.5, 2.5, 3.5])(floats).numpy()
    aligned = flow.nn.image.batch_align((32, 36, 3), flow.float, 4)(decoded(dtype=flow.float))
    return {
        "png": [sum_of(one) for one in decoded().numpy()],
        "png, BGR": [sum_of(one) for one in decoded("BGR").numpy()],
        "flip": [sum_of(one) for one in flow.nn.image.flip()(decoded(), codes).numpy()],
        "normalize": [sum_of(one) for one in normal],
        "batch_align": sum_of(aligned.numpy()),
        "jpeg": [
            one[::4, ::4].tolist()
            for one in flow.nn.OFRecordImageDecoder("jpeg", "RGB")(reader(batch_size=12)()).numpy()
        ],
    }


def main():
    write()
    found = {"orders": orders(), "raw": raw(), "resized": resized(), "normalized": normalized()}
    found |= {"cut": cut_from_several_sizes(), "others": others()}
    text = json.dumps(found, indent=None, separators=(",", ":"))
    (HERE / "records.json").write_text(text.replace("]],[", "]],\n[") + "\n", encoding="utf-8")
    os._exit(0)  # it hangs at its end else


if __name__ == "__main__":
    main()
