"""A ring of output buffers: what the user gets lies in one of a few sets of tensors, in turn."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Ring:
    """Of one program: ``size`` sets of tensors, each overwritten ``size`` calls later."""

    def __init__(self, size: int) -> None:
        self._sets: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self._next = 0

    def filled(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values, copied into the next set. Its tensors are made when it is first used."""
        buffers = self._sets[self._next]
        if [buffer.shape for buffer in buffers] != [value.shape for value in values]:
            self._sets[self._next] = buffers = [torch.empty_like(value) for value in values]
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
        self._next = (self._next + 1) % len(self._sets)
        return [buffer.detach() for buffer in buffers]
