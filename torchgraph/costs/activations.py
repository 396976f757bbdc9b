"""The forward values that the backward part reads: what a training step keeps in memory."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

import torch
from torch import fx

from ..ir.aliasing import storages_of
from ..ir.program import Phase, Program, provenance
from ..ir.values import tensors_of
from .traffic import shape_of


def kept_by_node(
    program: Program, repeated: AbstractSet[fx.Node] = frozenset()
) -> dict[fx.Node, int]:
    """Bytes that each forward node leaves for the backward part, of one micro-batch.

    A value and its views lie in one memory and count once, at the node that made it and as a whole.
    Parameters, buffers, old and new, and arguments of the call are there anyway and count nothing,
    nor does the gradient that the backward part begins with. So it is in the program; lowering may
    compute cheap ones again instead. ``repeated``: forward ops that the backward part is to run
    again, with what they read.
    """
    made: dict[int, tuple[fx.Node, int]] = {}
    kept: dict[fx.Node, int] = {}
    for state, value in program.states().items():
        made.update((storage, (state, 0)) for storage in storages_of(value))
    for node in program.nodes:
        if node.op == "placeholder":
            made.update((storage, (node, 0)) for storage in storages_of(node))
        if node.op != "call_function" or _begins_backward(node):
            continue
        phase = provenance(node).phase
        if phase is Phase.FORWARD:
            for storage, size in _memory(node).items():
                made.setdefault(storage, (node, 0 if node in repeated else size))
        if phase is Phase.BACKWARD or node in repeated:
            for storage in _read(node):
                maker, size = made.get(storage, (node, 0))
                if size:
                    kept[maker] = kept.get(maker, 0) + size
                    made[storage] = maker, 0  # counted
    return kept


def _begins_backward(node: fx.Node) -> bool:
    """True for the gradient of the loss, which ``backward()`` makes before the engine runs."""
    users = {provenance(user).phase for user in node.users}
    return node.target is torch.ops.aten.ones_like.default and users == {Phase.BACKWARD}


def _read(node: fx.Node) -> set[int]:
    """The storages of a node's arguments; for a result of several, the storage of that result."""
    sources = [source for source in node.all_input_nodes if not _is_tuple(source)] or [node]
    return {storage for source in sources for storage in storages_of(source)}


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _memory(node: fx.Node) -> dict[int, int]:
    """Bytes by storage."""
    return dict(zip(storages_of(node), map(_size, tensors_of(node)), strict=True))


def _size(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.strided:
        whole = tensor.untyped_storage().nbytes()
        if type(whole) is int:
            return whole
    return math.prod(shape_of(tensor)) * tensor.dtype.itemsize
