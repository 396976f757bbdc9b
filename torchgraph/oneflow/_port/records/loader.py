"""``oneflow.utils.data.DataLoader``: torch's, whose batches are not drawn inside of a ``build``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import default_collate as _torch_collate, default_convert as _torch_convert

from ....calls.live_step import building
from ..errors import NotPorted


def _read(sample: Any) -> Any:
    """A sample with NumPy's float64 numbers as float32, and arrays that torch can take."""
    if isinstance(sample, numpy.float64):
        return torch.tensor(sample, dtype=torch.float32)
    if isinstance(sample, numpy.ndarray) and any(stride < 0 for stride in sample.strides):
        return numpy.ascontiguousarray(sample)
    if isinstance(sample, Mapping):
        return {key: _read(value) for key, value in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*map(_read, sample))
    if isinstance(sample, (list, tuple)):
        return [_read(one) for one in sample]
    return sample


def default_collate(batch: Any) -> Any:
    """A batch of samples, stacked. OneFlow: ``utils.data.dataloader.default_collate``.

    NumPy's float64 numbers are float32 (an array keeps its dtype, and Python's numbers are float64
    as in torch). Arrays that run backwards, ``image[:, :, ::-1]``, are copied.
    """
    return _torch_collate([_read(sample) for sample in batch])


def default_convert(sample: Any) -> Any:
    """A sample of a loader with ``batch_size=None``: NumPy's as tensors, read as above."""
    return _torch_convert(_read(sample))


_OURS = {_torch_collate: default_collate, _torch_convert: default_convert}


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader. OneFlow: ``oneflow.utils.data.DataLoader``.

    Without a ``collate_fn`` it is `default_collate`.

    Raises:
        NotPorted: a batch is asked for inside of a ``build``, which runs in its first calls alone.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.collate_fn = _OURS.get(self.collate_fn, self.collate_fn)

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
