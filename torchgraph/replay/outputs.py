"""Outputs of a run: copies with the strides of the original, fresh or in a ring of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.copies import blank, fill
from ..ir.program import OutputKind, Program
from ..structure import Returned


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
