"""Collectives over the tensors of all ranks in one process: the result of each rank.

Each takes what the ranks of a group pass, in the order of the group, and sums in that order. So do
two ranks of gloo to the bit, and `torch.distributed._local_tensor`; a ring of more ranks adds in
another order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .errors import RanksOutOfStep

Tensors = list[torch.Tensor]
"""One of each rank."""

_REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "avg": operator.add,
    "product": operator.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def meet(name: str, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The result of each rank of one functional collective.

    Args:
        name: of the op, without its namespace: ``all_reduce``, ``all_gather_into_tensor``.
        calls: the arguments of each rank by the names of the op's schema, in the group's order.

    Raises:
        RanksOutOfStep: shapes, dtypes or other arguments that do not fit together.
        NotImplementedError: an op that nobody knows here.
    """
    in_place = name.endswith("_")
    base = name.removesuffix("_").removesuffix("_out")
    rule = _RULES.get(base.removesuffix("_coalesced"))
    if rule is None:
        raise NotImplementedError(f"{name}: this collective is not there for ranks of one process.")
    _agree(name, calls)
    first = "self" if "self" in calls[0] else "inputs" if "inputs" in calls[0] else "input"
    given = [call[first] for call in calls]
    if isinstance(given[0], (list, tuple)):
        columns = [rule(list(column), calls) for column in zip(*given, strict=True)]
        found: list[Any] = [list(row) for row in zip(*columns, strict=True)]
    else:
        found = rule(given, calls)
    return [_written(call, first, got, in_place) for call, got in zip(calls, found, strict=True)]


def _written(call: Mapping[str, Any], first: str, got: Any, in_place: bool) -> Any:
    """The result; written into the output or in-place argument, where there is one."""
    into = call[first] if in_place else call.get("out")
    if into is None:
        return got
    pairs = zip(into, got, strict=True) if isinstance(into, (list, tuple)) else [(into, got)]
    for there, value in pairs:
        there.copy_(value)
    return into


def _agree(name: str, calls: Sequence[Mapping[str, Any]]) -> None:
    """Raise RanksOutOfStep where the arguments of the ranks do not fit together."""
    uneven = name.startswith("all_to_all")
    told = [
        {key: _kind(value, uneven) for key, value in call.items() if not _of_a_rank(key, uneven)}
        for call in calls
    ]
    for rank, other in enumerate(told):
        for key, value in other.items():
            if value != told[0][key]:
                raise RanksOutOfStep(
                    f"{name}: the rank at place {rank} of the group passes {key} = {value}, the "
                    f"first one {told[0][key]}."
                )


def _of_a_rank(key: str, uneven: bool) -> bool:
    return key in ("group_name", "out") or (uneven and key.endswith("split_sizes"))


def _kind(value: Any, uneven: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape[1:] if uneven else value.shape)
    if isinstance(value, (list, tuple)):
        return [_kind(one, uneven) for one in value]
    return value


def _reduced(tensors: Tensors, op: str) -> torch.Tensor:
    if op not in _REDUCTIONS:
        raise NotImplementedError(f"{op}: this reduction is not there for ranks of one process.")
    found: torch.Tensor = functools.reduce(_REDUCTIONS[op], tensors)
    return found / len(tensors) if op == "avg" else found


def _all_reduce(tensors: Tensors, calls: Sequence[Mapping[str, Any]]) -> Tensors:
    found = _reduced(tensors, calls[0]["reduce_op"])
    return [found.clone() for _ in tensors]


def _all_gather(tensors: Tensors, calls: Sequence[Mapping[str, Any]]) -> Tensors:
    return [torch.cat(tensors) for _ in tensors]


def _reduce_scatter(tensors: Tensors, calls: Sequence[Mapping[str, Any]]) -> Tensors:
    size, rest = divmod(tensors[0].shape[0], len(tensors))
    if rest:
        raise RanksOutOfStep(
            f"reduce_scatter_tensor: {tensors[0].shape[0]} rows for {len(tensors)} ranks."
        )
    return [part.clone() for part in _reduced(tensors, calls[0]["reduce_op"]).split(size)]


def _all_to_all(tensors: Tensors, calls: Sequence[Mapping[str, Any]]) -> Tensors:
    sizes = [
        call["input_split_sizes"] or [one.shape[0] // len(tensors)] * len(tensors)
        for one, call in zip(tensors, calls, strict=True)
    ]
    parts = [one.split(list(size)) for one, size in zip(tensors, sizes, strict=True)]
    found = [torch.cat([part[rank] for part in parts]) for rank in range(len(tensors))]
    for rank, (got, call) in enumerate(zip(found, calls, strict=True)):
        wanted = sum(call["output_split_sizes"]) if call["output_split_sizes"] else got.shape[0]
        if got.shape[0] != wanted:
            raise RanksOutOfStep(
                f"all_to_all_single: the rank at place {rank} of the group waits for {wanted} rows "
                f"and is sent {got.shape[0]}."
            )
    return found


def _shards_exchanged(tensors: Tensors, calls: Sequence[Mapping[str, Any]]) -> Tensors:
    """The result of each rank of an all-to-all that moves sharding to another dimension."""
    whole = torch.cat(tensors, calls[0]["gather_dim"])
    dim = calls[0]["shard_dim"]
    if whole.shape[dim] % len(tensors):
        raise RanksOutOfStep(
            f"shard_dim_alltoall: {whole.shape[dim]} rows of dimension {dim} for {len(tensors)} "
            "ranks."
        )
    return [part.clone() for part in whole.chunk(len(tensors), dim)]


def _broadcast(tensors: Tensors, calls: Sequence[Mapping[str, Any]]) -> Tensors:
    return [tensors[calls[0]["src"]].clone() for _ in tensors]


_RULES: Mapping[str, Callable[[Tensors, Sequence[Mapping[str, Any]]], Tensors]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "shard_dim_alltoall": _shards_exchanged,
    "broadcast": _broadcast,
}
