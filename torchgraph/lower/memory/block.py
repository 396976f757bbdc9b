"""Block: the memory of an arena while a step runs, and the calls that write into its slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument

from ..._torch import OpOverload
from ..lifetimes import results
from .arena import COPIES, Arena, form_of


class OutCall(NamedTuple):
    """A call with given output memory, in place of a node that allocates."""

    target: OpOverload
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


class Block:
    """A context in which the arena's memory is allocated; views of it are made only once."""

    def __init__(self, arena: Arena) -> None:
        self._nbytes = arena.nbytes
        self._storage = torch.UntypedStorage(arena.nbytes)
        offsets = arena.offsets.items()
        self.calls: Mapping[fx.Node, OutCall] = {
            node: _out_call(node, self._slots(node, found)) for node, found in offsets
        }
        self._storage.resize_(0)

    def __enter__(self) -> None:
        self._storage.resize_(self._nbytes)

    def __exit__(self, *_: object) -> None:
        self._storage.resize_(0)

    def _slots(self, node: fx.Node, offsets: Sequence[int]) -> list[torch.Tensor]:
        slots = []
        for value, offset in zip(results(node), offsets, strict=True):
            slot = torch.empty(0, dtype=value.dtype)
            start = offset // value.itemsize
            slots.append(slot.set_(self._storage, start, value.shape, value.stride()))
        return slots


def _out_call(node: fx.Node, slots: Sequence[torch.Tensor]) -> OutCall:
    if node.target in COPIES:
        return OutCall(torch.ops.aten.copy_.default, (slots[0], node.args[0]), {})
    form = form_of(node)
    assert form is not None
    return OutCall(form.op, node.args, {**node.kwargs, **dict(zip(form.names, slots, strict=True))})
