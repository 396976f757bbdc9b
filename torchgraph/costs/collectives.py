"""Bytes that a program's collectives send over the network, by kind, group size and backend.

Of the usual algorithms: rings for all-reduce, gather and scatter, a tree for broadcast. A rank of a
ring of N sends ``2 (N - 1) / N`` of what it reduces, and ``(N - 1) / N`` of what it gathers or
scatters. Gloo has no reduce-scatter of its own under torch: torch reduces the whole there, and each
rank keeps its part (``ProcessGroupGloo.cpp``), which moves twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from .._torch import OpOverload, schema_of
from ..ir import effects
from ..ir.program import Program
from ..ir.values import tensors_of
from .traffic import elements

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
BROADCAST = "broadcast"
SEND = "send"
"""From one rank to another: no collective, and counted with them."""

_KINDS = {
    "all_reduce": ALL_REDUCE,
    "all_gather_into_tensor": ALL_GATHER,
    "reduce_scatter_tensor": REDUCE_SCATTER,
    "all_to_all_single": ALL_TO_ALL,
    "shard_dim_alltoall": ALL_TO_ALL,
    "broadcast": BROADCAST,
    "isend": SEND,
}
_SILENT = ("wait_tensor", "_wrap_tensor_autograd", "irecv")
"""They send nothing: one waits, one marks what is not there yet, one takes what another sends."""


_RING = 8
"""More ranks all-reduce over two trees, as NCCL's do: as many bytes, fewer messages in a row."""


@dataclass(frozen=True)
class Collective:
    """The communication of one node."""

    kind: str
    payload: int
    """Bytes of the whole: what is reduced, what the gathered shards make, what is scattered."""
    group: str
    """The name of the process group."""
    ranks: int | None = None
    """The size of the group, where the node says so."""
    tensors: int = 1
    """The number of tensors that travel together."""


def collective_of(node: fx.Node) -> Collective | None:
    """The collective that ``node`` runs; None for a node that computes or only waits.

    Raises:
        NotImplementedError: a collective whose bytes nobody has counted yet.
    """
    if not effects.of(node).communicates or not isinstance(node.target, OpOverload):
        return None
    name = schema_of(node.target).name.partition("::")[2]
    if name in _SILENT:
        return None
    base = name.removesuffix("_out").removesuffix("_coalesced").removesuffix("_")
    kind = _KINDS.get(base.removesuffix("_coalesced"))
    if kind is None:
        raise NotImplementedError(f"{node.target}: the bytes that it moves are not counted.")
    given = _named(node)
    moved = [node.args[0], node] if kind in (ALL_GATHER, REDUCE_SCATTER) else [node.args[0]]
    ranks = given.get("group_size")
    group = given.get("group_name", "")
    return Collective(
        kind,
        max(map(_nbytes, moved)),
        group if isinstance(group, str) else str(getattr(group, "group_name", group)),
        ranks if isinstance(ranks, int) else None,
        max(1, len(list(tensors_of(node.args[0])))),
    )


def collectives(program: Program) -> Iterator[tuple[fx.Node, Collective]]:
    """The collectives of a program, in the order in which ranks meet in them."""
    for node in program.nodes:
        found = collective_of(node) if node.op == "call_function" else None
        if found is not None:
            yield node, found


def is_wait(node: fx.Node) -> bool:
    """True for a node that waits until what a collective gives is there."""
    return (
        isinstance(node.target, OpOverload)
        and schema_of(node.target).name.rpartition("::")[2] == "wait_tensor"
    )


def wire_bytes(kind: str, payload: int, ranks: int, backend: str = "nccl") -> float:
    """Bytes that the rank which sends the most of them sends for one collective.

    Args:
        payload: bytes of the whole, as in `Collective`.
        ranks: how many are in the group.
        backend: ``gloo`` or another, of which rings are assumed.
    """
    if ranks <= 1:
        return 0.0
    ring = (ranks - 1) / ranks * payload
    if kind == ALL_REDUCE or (kind == REDUCE_SCATTER and backend == "gloo"):
        return 2 * ring
    if kind == BROADCAST:  # the root of a binomial tree
        return float(payload * math.ceil(math.log2(ranks)))
    if kind == SEND:
        return float(payload)
    return ring


def rounds(kind: str, ranks: int, backend: str = "nccl") -> int:
    """The number of messages sent one after the other in one collective."""
    if ranks <= 1:
        return 0
    if kind == ALL_REDUCE and backend != "gloo" and ranks > _RING:
        return 2 * math.ceil(math.log2(ranks))
    if kind == ALL_REDUCE or (kind == REDUCE_SCATTER and backend == "gloo"):
        return 2 * (ranks - 1)
    if kind == BROADCAST:
        return math.ceil(math.log2(ranks))
    return 1 if kind == SEND else ranks - 1


def wired(program: Program, groups: Mapping[str, int], backend: str = "nccl") -> dict[str, float]:
    """Bytes that a rank sends in one run of a program, by kind.

    Args:
        groups: the size of each process group, by its name.

    Raises:
        KeyError: a group of unknown size.
    """
    found: dict[str, float] = {}
    for _, one in collectives(program):
        ranks = groups[one.group] if one.ranks is None else one.ranks
        moved = wire_bytes(one.kind, one.payload, ranks, backend)
        found[one.kind] = found.get(one.kind, 0.0) + moved
    return found


def _named(node: fx.Node) -> dict[str, object]:
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in schema_of(node.target).arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _nbytes(value: object) -> int:
    return sum(elements(tensor) * tensor.dtype.itemsize for tensor in tensors_of(value))
