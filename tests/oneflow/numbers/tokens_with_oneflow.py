"""Samples that OneFlow 0.9 reads of indexed tokens. Run it under OneFlow 0.9 with Python 3.10.

``python tokens_with_oneflow.py FOLDER > tokens.json``. OneFlow aborts where a reader has given all
samples, and reads ahead: each case asks for fewer than it has.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

LENGTHS = [5, 7, 3, 9, 4, 6, 8, 5, 7, 6]
CASES = [  # num_samples, shuffle, random_seed, split_sizes, split_index, batches
    (60, False, 1, [7, 2, 1], 0, 22),
    (60, False, 1, [7, 2, 1], 1, 12),
    (60, True, 1, [7, 2, 1], 0, 22),
    (60, True, 1, [3, 1, 1], 1, 12),
    (60, True, 77, [100, 50, 30], 1, 12),
    (41, True, 9, [949, 50, 1], 0, 12),
    (49, True, 9, [949, 50, 1], 0, 12),
    (30, True, 3, [1], 0, 8),
    (39, True, 3, [1], 0, 8),
    (100, True, 123, [1, 1, 1, 1], 2, 12),
    (60, False, 5, [45, 35, 20], 2, 12),
]


def write(prefix):
    """Documents of these lengths; the tokens count up."""
    tokens = np.arange(sum(LENGTHS)).astype(np.uint16)
    sizes = np.array(LENGTHS, np.int32)
    starts = 2 * np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    head += len(sizes).to_bytes(8, "little") + (len(sizes) + 1).to_bytes(8, "little")
    ends = np.arange(len(sizes) + 1, dtype=np.int64)
    Path(prefix + ".idx").write_bytes(head + sizes.tobytes() + starts.tobytes() + ends.tobytes())
    Path(prefix + ".bin").write_bytes(tokens.tobytes())


def main():
    prefix = str(Path(sys.argv[1]) / "text")
    write(prefix)
    found = []
    for samples, shuffle, seed, split, part, batches in CASES:
        reader = flow.nn.GPTIndexedBinDataReader(
            prefix, 4, samples, 2, flow.int64, shuffle, seed, split, part, device="cpu"
        )
        rows = [row for _ in range(batches) for row in reader().numpy().tolist()]
        found.append({"given": [samples, shuffle, seed, split, part], "rows": rows})
    sys.stdout.write(json.dumps({"lengths": LENGTHS, "cases": found}) + "\n")
    sys.stdout.flush()
    os._exit(0)


main()
