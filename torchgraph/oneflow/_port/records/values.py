"""What goes from one data module to the next: records, and tensors of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import NotPorted

if TYPE_CHECKING:  # it needs protobuf, which images alone do not
    from .format.files import Record

Array = np.ndarray[Any, np.dtype[Any]]


class Records:
    """A batch of records: what a reader gives. OneFlow: a tensor of dtype ``of_record``."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)

    @property
    def shape(self) -> torch.Size:
        """(batch size)"""
        return torch.Size([len(self.records)])

    def __len__(self) -> int:
        return len(self.records)


class TensorBuffer:
    """A batch of arrays that differ in shape. OneFlow: a tensor of dtype ``tensor_buffer``."""

    def __init__(self, values: Sequence[Array]) -> None:
        self.values = list(values)

    @property
    def shape(self) -> torch.Size:
        """(batch size)"""
        return torch.Size([len(self.values)])

    def __len__(self) -> int:
        return len(self.values)

    def numpy(self) -> list[Array]:
        """The arrays."""
        return list(self.values)


Value = Records | TensorBuffer | torch.Tensor | None
"""What a data module takes and gives."""


def records_in(value: Value) -> list[Record]:
    """The records of a batch.

    Raises:
        NotPorted: it is none of records.
    """
    if not isinstance(value, Records):
        raise NotPorted(
            f"A decoder of records is given a {type(value).__name__}.",
            fix="give it what OFRecordReader gives.",
        )
    return value.records


def buffer_in(value: Value) -> TensorBuffer:
    """A batch of arrays.

    Raises:
        NotPorted: it is something else.
    """
    if not isinstance(value, TensorBuffer):
        raise NotPorted(
            f"An operation on images of several sizes is given a {type(value).__name__}.",
            fix="give it what an image decoder gives; torch's own functions work on tensors.",
        )
    return value
