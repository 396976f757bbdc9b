"""A pair of files: ``<prefix>.bin`` has tokens, ``<prefix>.idx`` where documents begin."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadRecord

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = len(_MAGIC) + 8 + 1 + 8 + 8
_DTYPES: dict[int, Any] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}


class Documents:
    """The documents of a pair of files.

    Raises:
        BadRecord: a file that lacks, is cut off, or is none of the kind.
    """

    def __init__(self, prefix: str) -> None:
        index = _read(f"{prefix}.idx")
        if len(index) < _HEAD or bytes(index[: len(_MAGIC)]) != _MAGIC:
            raise BadRecord(f"{prefix}.idx is no index of Megatron-LM's (MMIDIDX).")
        version, code = int(index[9:17].view("<u8")[0]), int(index[17])
        sentences, ends = (int(index[at : at + 8].copy().view("<u8")[0]) for at in (18, 26))
        if version != 1 or code not in _DTYPES:
            raise BadRecord(f"{prefix}.idx has the version {version} and the dtype {code}.")
        if len(index) < _HEAD + 12 * sentences + 8 * ends or ends < 2:
            raise BadRecord(f"{prefix}.idx is cut off: it is to have {sentences} sentences.")
        body = index[_HEAD:]
        sizes = body[: 4 * sentences].copy().view("<i4").astype(np.int64)
        starts = body[4 * sentences : 12 * sentences].copy().view("<i8")
        of_documents = body[12 * sentences : 12 * sentences + 8 * ends].copy().view("<i8")
        self.tokens = _read(f"{prefix}.bin", _DTYPES[code])
        width = self.tokens.dtype.itemsize
        if (starts % width).any():
            raise BadRecord(f"{prefix}.idx: a sentence begins in the middle of a token.")
        begins = np.append(starts // width, (starts[-1] // width + sizes[-1]) if sentences else 0)
        if of_documents.min() < 0 or of_documents.max() > sentences:
            raise BadRecord(f"{prefix}.idx: a document has sentences that are not there.")
        self.begins = begins[of_documents]
        """The token with which each document begins; at last, where the last one ends."""
        if (np.diff(self.begins) < 0).any() or self.begins[0] < 0:
            raise BadRecord(f"{prefix}.idx: documents do not follow each other.")
        if self.begins[-1] > len(self.tokens):
            raise BadRecord(f"{prefix}.bin is cut off: it has {len(self.tokens)} tokens.")

    def __len__(self) -> int:
        return len(self.begins) - 1


@lru_cache(maxsize=8)
def documents(prefix: str) -> Documents:
    """Those of a prefix; each process maps the files once."""
    return Documents(prefix)


def _read(path: str, dtype: Any = np.uint8) -> Any:
    try:
        if not Path(path).stat().st_size:
            raise BadRecord(f"{path} is empty.")
        return np.memmap(path, dtype, mode="r")
    except OSError as error:
        raise BadRecord(
            f"{path} cannot be read: {error.strerror}.", fix="data_file_prefix has no suffix."
        ) from None
