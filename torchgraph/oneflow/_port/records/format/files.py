"""OFRecord files: a length of eight bytes, little-endian, and a message, again and again."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import BadRecord
from .messages import KINDS, NotAMessage, OFRecord

_LENGTH = struct.Struct("<q")
_MOST = 2**31 - 1
"""No message of protobuf is longer."""
_KIND_OF = {"f4": "float_list", "f8": "double_list", "i4": "int32_list", "i8": "int64_list"}
_NARROW = {"i1": "int32_list", "i2": "int32_list", "u1": "int32_list", "u2": "int32_list"}


class Extent(NamedTuple):
    """Where a record lies."""

    path: str
    number: int
    """Counted from 0 in its file."""
    start: int
    """Where its message begins, in bytes."""
    length: int

    def __str__(self) -> str:
        return f"record {self.number} of {self.path}"


def extents_in(path: str) -> Iterator[Extent]:
    """The records of a file; only their lengths are read.

    Raises:
        BadRecord: there is no such file, it is cut off, or a length is none.
    """
    with _opened(path) as file:
        size, start, number = os.fstat(file.fileno()).st_size, 0, 0
        while start < size:
            head = os.pread(file.fileno(), _LENGTH.size, start)
            if len(head) < _LENGTH.size:
                raise BadRecord(
                    f"{path} is cut off: {len(head)} bytes are left where the length of record "
                    f"{number} is to be (byte {start})."
                )
            (length,) = _LENGTH.unpack(head)
            start += _LENGTH.size
            place = Extent(path, number, start, length)
            if not 0 <= length <= _MOST:
                raise BadRecord(f"{place} says that it has {length} bytes (byte {start - 8}).")
            if start + length > size:
                raise BadRecord(
                    f"{path} is cut off: record {number} says that it has {length} bytes, and "
                    f"{size - start} are left."
                )
            yield place
            start, number = start + length, number + 1


def _opened(path: str) -> Any:
    try:
        # Who opens a named pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadRecord(f"{path} is no file.")
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise BadRecord(
            f"{path} cannot be read: {error.strerror}.",
            fix="data_part_num, part_name_prefix and part_name_suffix_length name the files "
            "<prefix><number>, the number with leading zeros up to that length.",
        ) from None


class Record:
    """The features of one record."""

    def __init__(self, place: Extent) -> None:
        self.place = place
        with _opened(place.path) as file:
            payload = os.pread(file.fileno(), place.length, place.start)
        if len(payload) < place.length:
            raise BadRecord(f"{place} was there, and is cut off now.")
        try:
            self._features = OFRecord.FromString(payload).feature
        except NotAMessage:
            raise BadRecord(f"{place} is no OFRecord message.") from None

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return sorted(self._features)

    def feature(self, name: str) -> tuple[str, Sequence[Any]]:
        """The kind (`messages.KINDS`) and the values of a feature.

        Raises:
            BadRecord: there is none of that name, or it is empty.
        """
        if name not in self._features:
            there = ", ".join(map(repr, self.names)) or "nothing"
            raise BadRecord(
                f"{self.place} has no feature {name!r}; it has {there}.",
                fix="give the decoder the name of a feature that is there (blob_name).",
            )
        feature = self._features[name]
        kind = feature.WhichOneof("kind")
        if kind is None:
            raise BadRecord(f"{self.place}: the feature {name!r} holds nothing.")
        return kind, getattr(feature, kind).value

    def one_text(self, name: str) -> bytes:
        """The single value of a feature of bytes.

        Raises:
            BadRecord.
        """
        kind, values = self.feature(name)
        if kind != "bytes_list" or len(values) != 1:
            raise BadRecord(
                f"{self.place}: the feature {name!r} is a {kind} of {len(values)} values, and one "
                "value of bytes is decoded.",
                fix="decode numbers with OFRecordRawDecoder.",
            )
        return bytes(values[0])


def write_records(path: str | Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Write an OFRecord file that OneFlow reads, too; the number of records.

    Args:
        records: of each the features by name: bytes, or what NumPy makes an array of, whose dtype
            is that of the list: int32, int64, float32 or float64; smaller ints become int32.

    Raises:
        TypeError: another dtype.
    """
    count = 0
    with open(path, "wb") as file:
        for features in records:
            message = OFRecord()
            for name, value in features.items():
                kind, values = _listed(name, value)
                getattr(message.feature[name], kind).value.extend(values)
            payload = message.SerializeToString(deterministic=True)
            file.write(_LENGTH.pack(len(payload)) + payload)
            count += 1
    return count


def _listed(name: str, value: Any) -> tuple[str, list[Any]]:
    if isinstance(value, (bytes, bytearray)):
        return "bytes_list", [bytes(value)]
    found = np.asarray(value)
    key = found.dtype.str[1:]
    kind = _KIND_OF.get(key) or _NARROW.get(key)
    if kind is None:
        known = ", ".join(KINDS)
        raise TypeError(f"The feature {name!r} is of {found.dtype}; there are {known}.")
    return kind, found.ravel().tolist()
