"""Readers: which records make a batch, in OneFlow's order; and the features of raw numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import BadRecord
from .engines import DefaultEngine, shuffled
from .format.files import Extent, Record, extents_in
from .operation import Operation
from .values import Records, TensorBuffer, Value, records_in

ENTROPY = random.SystemRandom()
"""Makes the seeds that nobody gave: OneFlow takes them from the system, too."""


@dataclass(frozen=True)
class Reads(Operation):
    """Batches of records, round and round: a batch may end with the first records again."""

    paths: tuple[str, ...]
    """Those of all ranks."""
    part: tuple[int, int]
    """Which of the paths are this rank's, from and to."""
    batch_size: int
    buffer: int
    """Records among which one is drawn; 0: none is."""
    shuffles_files: bool
    seed: int
    """-1: another one each time."""

    def draws(self) -> Iterator[list[Extent]]:
        places = self._extents()
        if self.buffer:
            places = self._mixed(places)
        while True:
            yield [next(places) for _ in range(self.batch_size)]

    def _extents(self) -> Iterator[Extent]:
        """Files of later epochs are shuffled from what the epoch before had."""
        paths, epoch = list(self.paths), 0
        while True:
            found = False
            for path in paths[slice(*self.part)]:
                for place in extents_in(path):
                    found = True
                    yield place
            if not found:
                raise BadRecord(f"There is no record in {', '.join(paths[slice(*self.part)])}.")
            epoch += 1
            if self.shuffles_files:
                paths = shuffled(paths, epoch)

    def _mixed(self, places: Iterator[Extent]) -> Iterator[Extent]:
        """Each record changes places with one of the buffer, which is full before the first."""
        seed = ENTROPY.getrandbits(31) if self.seed == -1 else self.seed
        engine, held = DefaultEngine(seed), [next(places) for _ in range(self.buffer)]
        for place in places:
            drawn = engine.below(self.buffer)
            held[drawn], place = place, held[drawn]
            yield place

    def run(self, drawn: list[Extent], *inputs: Value) -> tuple[Value, ...]:
        return (Records([Record(place) for place in drawn]),)


@dataclass(frozen=True)
class DecodesRaw(Operation):
    """A feature of numbers, or of bytes that are numbers of one byte, as a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fills: bool
    """Values that are too many are left out, and zeros stand for those that lack."""

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        records = records_in(inputs[0])
        found = np.zeros((len(records), math.prod(self.shape)), _NUMPY[self.dtype])
        with np.errstate(all="ignore"):  # C++ casts without a word
            for row, record in zip(found, records, strict=True):
                values = self._values(record)
                row[: len(values)] = values[: len(row)].astype(row.dtype)
        return (torch.from_numpy(found).reshape(len(records), *self.shape),)

    def _values(self, record: Record) -> np.ndarray[Any, Any]:
        kind, values = record.feature(self.name)
        if kind == "bytes_list":
            found = np.frombuffer(record.one_text(self.name), np.int8)
        else:
            found = np.array(values, _OF_KIND[kind])
        if len(found) != math.prod(self.shape) and not self.fills:
            raise BadRecord(
                f"{record.place}: the feature {self.name!r} is a {kind} of {len(found)} values, "
                f"and the shape {self.shape} has {math.prod(self.shape)}.",
                fix="give OFRecordRawDecoder the right shape, or truncate=True, which cuts and "
                "fills up with zeros.",
            )
        return found


_OF_KIND = {
    "float_list": np.float32,
    "double_list": np.float64,
    "int32_list": np.int32,
    "int64_list": np.int64,
}
_NUMPY = {
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
RAW = tuple(_NUMPY)
"""The dtypes that a raw decoder gives."""


@dataclass(frozen=True)
class DecodesBytes(Operation):
    """A feature of bytes as it is: arrays of uint8."""

    name: str

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        records = records_in(inputs[0])
        texts = [record.one_text(self.name) for record in records]
        return (TensorBuffer([np.frombuffer(text, np.uint8) for text in texts]),)


@dataclass(frozen=True)
class FlipsCoins(Operation):
    """A 1 with a probability, else a 0, for each sample."""

    batch_size: int
    probability: float
    seed: int | None

    def draws(self) -> Iterator[Any]:
        engine = np.random.default_rng(ENTROPY.getrandbits(64) if self.seed is None else self.seed)
        while True:
            yield (engine.random(self.batch_size) < self.probability).astype(np.int8)

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        return (torch.from_numpy(drawn),)
