"""Samples of tokens: which documents in which order, and what of them is one sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from .....errors import InvalidOption
from ..engines import shuffled_by
from ..operation import Operation
from ..values import Value
from .files import documents

_LABEL = 1
"""A sample has one token more than the sequence: labels are the tokens shifted by one."""


@dataclass(frozen=True)
class ReadsTokens(Operation):
    """Batches of samples; together as many as OneFlow prepares for a number of samples."""

    prefix: str
    sequence: int
    samples: int
    batch_size: int
    dtype: torch.dtype
    shuffles: bool
    seed: int
    split: tuple[int, ...]
    part: int
    """Which part of the split."""

    def draws(self) -> Iterator[list[tuple[tuple[int, int], ...]]]:
        """The stretches of tokens of each sample, from and to."""
        made = _Order(self)
        number = 0
        while True:
            if number + self.batch_size > len(made.samples):
                raise InvalidOption(
                    f"GPTIndexedBinDataReader(num_samples={self.samples}) has given all samples.",
                    fix="num_samples is for all steps: batch size times steps, with micro-batches.",
                )
            chosen = made.samples[number : number + self.batch_size]
            yield [made.stretches(one * self.sequence) for one in chosen]
            number += self.batch_size

    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        tokens = documents(self.prefix).tokens
        rows = [np.concatenate([tokens[at:to] for at, to in stretches]) for stretches in drawn]
        return (torch.from_numpy(np.stack(rows).astype(np.int64)).to(self.dtype),)


class _Order:
    """Documents of all epochs one after the other, and an order of samples.

    The last epoch is shuffled by itself where it is needed for less than 80 % of it.
    """

    def __init__(self, of: ReadsTokens) -> None:
        held = documents(of.prefix)
        self._length = of.sequence + _LABEL
        chosen = _part(len(held), of.split, of.part)
        begins = held.begins
        each = int(sum(begins[one + 1] - begins[one] for one in chosen))
        if each == 0:
            raise InvalidOption(f"The part {of.part} of the split {of.split} has no tokens.")
        epochs = -(-(of.samples * of.sequence + _LABEL) // each)
        complete = _complete(epochs, each, of)
        engine = np.random.RandomState(of.seed & 0xFFFFFFFF)

        def order(items: list[int]) -> list[int]:
            return shuffled_by(engine, items) if of.shuffles and items else items

        listed = order(chosen * complete) + order(chosen * (epochs - complete))
        self._documents = [(int(begins[one]), int(begins[one + 1])) for one in listed]
        self._starts = np.array(
            list(accumulate((to - at for at, to in self._documents), initial=0))
        )
        total = (epochs * each - _LABEL) // of.sequence
        first = (complete * each - _LABEL) // of.sequence if complete < epochs else total
        self.samples = order(list(range(first))) + order(list(range(first, total)))

    def stretches(self, start: int) -> tuple[tuple[int, int], ...]:
        """The tokens of a sample that begins with a token of the documents in order."""
        found: list[tuple[int, int]] = []
        at, left = int(np.searchsorted(self._starts, start, side="right")) - 1, self._length
        inside = start - int(self._starts[at])
        while left:
            begin, end = self._documents[at]
            taken = min(left, end - begin - inside)
            if taken:
                found.append((begin + inside, begin + inside + taken))
            left, at, inside = left - taken, at + 1, 0
        return tuple(found)


def _part(count: int, split: tuple[int, ...], part: int) -> list[int]:
    """The documents of a part. Each share is rounded by itself, halves to even, as OneFlow does."""
    shares = [round(share / sum(split) * count) for share in split]
    begin = sum(shares[:part])
    if begin + shares[part] > count:
        raise InvalidOption(
            f"The shares {shares} of the split {split} are more than the {count} documents.",
            fix="give numbers of documents whose sum is that of all documents.",
        )
    return list(range(begin, begin + shares[part]))


def _complete(epochs: int, each: int, of: ReadsTokens) -> int:
    """How many epochs are shuffled together."""
    if epochs == 1:
        return 1
    before = ((epochs - 1) * each - _LABEL) // of.sequence
    in_one = (each - _LABEL) // of.sequence
    return epochs - 1 if of.samples - before < int(in_one * 0.8) else epochs
