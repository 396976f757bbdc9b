"""Files with the form of what OneFlow's scripts read; what is to be learned from them is easy."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from torchgraph.oneflow._port.records.format.files import write_records

SEQUENCE, PREDICTIONS, VOCABULARY = 12, 3, 40


def parts(folder: Path, count: int, records: Callable[[int], Any], *, digits: int = 5) -> Path:
    """Files ``part-00000`` of records; `records` makes those of one part."""
    folder.mkdir(parents=True)
    for part in range(count):
        write_records(folder / f"part-{part:0{digits}d}", records(part))
    return folder


def pictures(classes: int, count: int, side: int, *, seed: int = 0) -> Iterator[tuple[int, bytes]]:
    """Labels and JPEGs: each class has a colour of its own beside noise, and the sizes differ."""
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(99).integers(0, 256, (classes, 3))
    for number in range(count):
        label = number % classes
        shape = (side + number % 3, side + number % 5, 3)
        noise = rng.integers(0, 80, shape)
        pixels = (0.7 * colours[label] + noise).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        yield label, file.getvalue()


def image_records(
    root: Path,
    folders: Sequence[str] = ("train", "validation"),
    *,
    classes: int = 4,
    count: int = 24,
    side: int = 30,
    part_count: int = 2,
) -> Path:
    """Folders of parts with ``encoded`` and ``class/label``."""
    for number, name in enumerate(folders):

        def records(part: int, number: int = number) -> Iterator[dict[str, Any]]:
            for label, encoded in pictures(classes, count, side, seed=10 * number + part):
                yield {"encoded": encoded, "class/label": np.int32(label)}

        parts(root / name, part_count, records)
    return root


def bert_records(
    root: Path,
    *,
    sequence: int = SEQUENCE,
    predictions: int = PREDICTIONS,
    vocabulary: int = VOCABULARY,
    part_count: int = 2,
    count: int = 40,
) -> Path:
    """Sentences that repeat few words, some masked; the second half follows where words are odd."""

    def records(part: int) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(part)
        for _ in range(count):
            follows = int(rng.integers(2))
            ids = rng.integers(4, min(vocabulary, 12), sequence) // 2 * 2 + follows
            mask = np.ones(sequence, np.int32)
            mask[sequence - int(rng.integers(1, 3)) :] = 0
            positions = np.sort(rng.permutation(sequence - 3)[:predictions] + 1)
            masked = ids[positions].copy()
            ids[positions] = 3
            weights = np.ones(predictions, np.float32)
            weights[predictions - int(rng.integers(0, 2)) :] = 0
            yield {
                "input_ids": ids.astype(np.int32),
                "next_sentence_labels": np.int32(follows),
                "input_mask": mask,
                "segment_ids": (np.arange(sequence) >= sequence // 2).astype(np.int32),
                "masked_lm_ids": masked.astype(np.int32),
                "masked_lm_positions": positions.astype(np.int32),
                "masked_lm_weights": weights,
            }

    return parts(root, part_count, records, digits=1)


def click_records(
    root: Path,
    *,
    vocabulary: int = 30,
    dense: int = 3,
    wide: int = 2,
    deep: int = 5,
    part_count: int = 2,
    count: int = 80,
) -> Path:
    """Fields whose first one tells the label most of the time."""
    for number, name in enumerate(("train", "val")):

        def records(part: int, number: int = number) -> Iterator[dict[str, Any]]:
            rng = np.random.default_rng(10 * number + part)
            for _ in range(count):
                fields = rng.integers(1, vocabulary, wide + deep).astype(np.int32)
                label = int(fields[0] > vocabulary // 2) ^ int(rng.random() < 0.1)
                yield {
                    "labels": np.int32(label),
                    "dense_fields": rng.normal(label, 1.0, dense).astype(np.float32),
                    "wide_sparse_fields": fields[:wide],
                    "deep_sparse_fields": fields[wide:],
                }

        parts(root / name, part_count, records)
    return root


def indexed_tokens(prefix: Path, *, vocabulary: int = 32, documents: int = 60) -> Path:
    """``<prefix>.bin`` and ``.idx`` as Megatron writes them: counting up, from anywhere."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(documents):
        start, length = int(rng.integers(vocabulary)), int(rng.integers(20, 40))
        texts.append(((start + np.arange(length)) % vocabulary).astype(np.uint16))
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) * 2
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    counts = len(sizes).to_bytes(8, "little") + (len(sizes) + 1).to_bytes(8, "little")
    ends = np.arange(len(sizes) + 1, dtype=np.int64)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index = head + counts + sizes.tobytes() + starts.tobytes() + ends.tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(index)
    prefix.with_name(prefix.name + ".bin").write_bytes(np.concatenate(texts).tobytes())
    return prefix


def photographs(folder: Path, count: int = 4, *, side: int = 24) -> Path:
    """Files ``0.jpg``."""
    folder.mkdir(parents=True)
    for number, (_, encoded) in enumerate(pictures(4, count, side)):
        (folder / f"{number}.jpg").write_bytes(encoded)
    return folder
