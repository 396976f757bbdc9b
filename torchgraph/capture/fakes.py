"""Fake tensors for the values of a tape: made from what was met, no kernel is asked."""

from __future__ import annotations

from typing import Any

import torch

from .._torch import FakeTensor, FakeTensorMode, set_conj, set_neg
from ..record.tape.tape import TensorLayout


class Fakes:
    """The fake tensors of one tape: values that shared memory share the memory of their fakes."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._made: dict[TensorLayout, torch.Tensor] = {}

    def of(self, layout: TensorLayout) -> torch.Tensor:
        """The fake tensor of this layout."""
        found = self._made.get(layout)
        if found is None:
            found = self._made[layout] = self._fake(layout, self._storage(layout))
        return found

    def apart(self, layout: TensorLayout) -> torch.Tensor:
        """A fake tensor of this layout in memory of its own."""
        return self._fake(layout, torch.UntypedStorage(layout.nbytes, device="meta"))

    def _storage(self, layout: TensorLayout) -> torch.UntypedStorage:
        found = self._storages.get(layout.storage)
        if found is None:
            found = torch.UntypedStorage(layout.nbytes, device="meta")
            self._storages[layout.storage] = found
        if found.nbytes() < layout.nbytes:
            found.resize_(layout.nbytes)
        return found

    def _fake(self, layout: TensorLayout, storage: Any) -> torch.Tensor:
        if layout.offset < 0:
            raise ValueError(
                "it reads the memory of an argument in front of where the argument begins; pass a "
                "copy, or all of that memory"
            )
        blank = torch.empty(0, dtype=layout.dtype, device="meta")
        blank.set_(storage, layout.offset, layout.shape, layout.stride)
        if layout.conj:
            set_conj(blank)
        if layout.neg:
            set_neg(blank)
        return FakeTensor(self.mode, blank, layout.device)
