"""Undo: what memory held before the step wrote it, for a step that is taken back."""

from __future__ import annotations

import torch


class Undo:
    """Memory that was there before the step, each storage copied before its first write."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage | None]] = {}
        self._own: set[int] = set()

    def foreign(self, tensor: torch.Tensor) -> None:
        """``tensor`` was there before the step."""
        if tensor.layout is torch.strided and not tensor.is_nested:
            storage = tensor.untyped_storage()
            self._before.setdefault(storage._cdata, (storage, None))

    def keep(self, tensor: torch.Tensor) -> None:
        """Copy the memory of ``tensor``, which is about to be written, if it is not the step's."""
        address = tensor.untyped_storage()._cdata
        known = self._before.get(address)
        if known is not None and known[1] is None:
            self._before[address] = (known[0], known[0].clone())

    def put_back(self) -> None:
        """Everything is as before the step."""
        for storage, before in self._before.values():
            if before is not None:
                storage.copy_(before)

    @property
    def nbytes(self) -> int:
        """Of the copies."""
        return sum(b.nbytes() for _, b in self._before.values() if b is not None)
