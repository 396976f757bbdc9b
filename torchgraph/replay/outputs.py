"""Outputs of a run: copies with the strides of the original, fresh or in a ring of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.program import OutputKind, Program
from ..structure import Returned


def blank(value: torch.Tensor) -> torch.Tensor:
    """Memory for a copy: same shape, strides, dtype and device."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def fill(into: torch.Tensor, value: torch.Tensor) -> None:
    """Copy the elements; where they overlap, as those of an expanded tensor do, the memory."""
    pairs = list(zip(value.shape, value.stride(), strict=True))
    if value.numel() and any(size > 1 and stride == 0 for size, stride in pairs):
        span = 1 + sum((size - 1) * stride for size, stride in pairs)
        into, value = into.as_strided((span,), (1,)), value.as_strided((span,), (1,))
    into.copy_(value)


def copy_of(value: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of ``value``, gaps and overlaps included."""
    made = blank(value)
    fill(made, value)
    return made


class Ring:
    """Buffers of one program: ``size`` sets of tensors, each overwritten ``size`` calls later."""

    def __init__(self, size: int) -> None:
        self._sets: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self._next = 0

    def filled(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values, copied into the next set. Its tensors are made when it is first used."""
        buffers = self._sets[self._next]
        if [buffer.shape for buffer in buffers] != [value.shape for value in values]:
            self._sets[self._next] = buffers = [blank(value) for value in values]
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                fill(buffer, value)
        self._next = (self._next + 1) % len(self._sets)
        return [buffer.detach() for buffer in buffers]


def fake_outputs(program: Program, out_tree: Returned) -> Any:
    """The structure that `build` returned, with the fake tensors of the program in it."""
    users = [value.meta["val"] for out, value in program.returns() if out.kind is OutputKind.USER]
    return out_tree.shown(users)
