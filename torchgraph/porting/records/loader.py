"""``oneflow.utils.data.DataLoader``: torch's, whose batches are not drawn inside of a ``build``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...calls.stepping import building
from ..errors import NotPorted


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader. OneFlow: ``oneflow.utils.data.DataLoader``.

    Raises:
        NotPorted: a batch is asked for inside of a ``build``, which runs in its first calls alone.
    """

    def __iter__(self) -> Any:
        return _Batches(super().__iter__(), len(self) if hasattr(self.dataset, "__len__") else None)


class _Batches(Iterator[Any]):
    """The iterator of a loader."""

    def __init__(self, batches: Iterator[Any], count: int | None) -> None:
        self._batches, self._count = batches, count

    def __next__(self) -> Any:
        if building():
            raise NotPorted(
                "A batch is drawn from a DataLoader inside of build, which is recorded: later "
                "calls do not run its Python.",
                fix="draw it outside and pass it: graph(x, y); or read by nn.OFRecordReader.",
            )
        return next(self._batches)

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError("a DataLoader over an iterable data set has no length")
        return self._count
