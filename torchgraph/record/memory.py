"""Memory: tensors are known by where they lie, never by the Python object.

Autograd hands saved tensors back as other objects, and so do ``detach()`` and ``.data``. A storage
is kept from being used twice by a weak reference, which pins its address and not its data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .tape import Layout, Tape

_Key = tuple[Any, ...]


class Memory:
    """Which value of a tape lies where."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._storages: dict[int, tuple[int, StorageWeakRef]] = {}
        self._values: dict[_Key, int] = {}
        self._first: dict[int, int] = {}
        """Storage -> the first value known in it."""
        self._strange: dict[int, tuple[torch.Tensor, int]] = {}
        """Tensors without a storage, by identity."""
        self._starts: dict[int, int] = {}
        """Storage of an argument -> the offset at which it begins: the next batch has another."""

    def argument(self, tensor: torch.Tensor) -> int:
        """A new value for an argument of the step: its memory begins where it does."""
        if tensor.layout is torch.strided and not tensor.is_nested:
            self._starts.setdefault(self.storage(tensor), int(tensor.storage_offset()))
        return self.new(tensor)

    def offset(self, tensor: torch.Tensor) -> int:
        """Where in its memory a tensor lies."""
        start = self._starts.get(self.storage(tensor), 0)
        return int(tensor.storage_offset()) - start

    def find(self, tensor: torch.Tensor) -> int | None:
        """The value that lies where ``tensor`` lies; None when nothing does."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            known = self._strange.get(id(tensor))
            return None if known is None else known[1]
        return self._values.get(_key(tensor))

    def put(self, tensor: torch.Tensor, index: int) -> None:
        """From now on, ``index`` is what lies where ``tensor`` lies."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            self._strange[id(tensor)] = (tensor, index)
            return
        self._values[_key(tensor)] = index
        self._first.setdefault(self.storage(tensor), index)

    def new(self, tensor: torch.Tensor) -> int:
        """A new value on the tape for a tensor."""
        index = self._tape.add(self.layout(tensor))
        self.put(tensor, index)
        return index

    def in_storage(self, tensor: torch.Tensor) -> int | None:
        """The first value in the storage of ``tensor``; None where the storage is new."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        address = tensor.untyped_storage()._cdata
        known = self._storages.get(address)
        return None if known is None else self._first.get(known[0])

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of a storage, given when it is first met."""
        held = tensor.untyped_storage()
        known = self._storages.get(held._cdata)
        if known is None:
            known = self._storages[held._cdata] = (len(self._storages), StorageWeakRef(held))
        return known[0]

    def layout(self, tensor: torch.Tensor) -> Layout:
        """Of a tensor; one without a storage gets a storage number of its own, below 0."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            number = -1 - len(self._strange)
            shape = () if tensor.is_nested else tuple(tensor.shape)
            return Layout(number, 0, 0, shape, (), tensor.dtype, tensor.device)
        return Layout(
            self.storage(tensor),
            tensor.untyped_storage().nbytes(),
            self.offset(tensor),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )


def _key(tensor: torch.Tensor) -> _Key:
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )
