"""``oneflow.distributed`` of releases after 0.9: the functions of ``oneflow.comm``, as torch's."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ....distributed.words import comm
from ..errors import NotPorted


class ReduceOp:
    """What is done with the values of all ranks: sums alone. OneFlow: ``distributed.ReduceOp``."""

    SUM = "sum"


def _plain(name: str, group: object, async_op: object, op: object = ReduceOp.SUM) -> None:
    if group is not None or async_op or op != ReduceOp.SUM:
        raise NotPorted(
            f"distributed.{name} takes no group, waits, and sums, as OneFlow's does.",
            fix=f"use torch.distributed.{name}.",
        )


def all_reduce(
    tensor: Tensor, op: str = ReduceOp.SUM, group: object = None, async_op: bool = False
) -> None:
    """OneFlow: ``distributed.all_reduce``, and of the others the same names."""
    _plain("all_reduce", group, async_op, op)
    comm.all_reduce(tensor)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: object = None, async_op: bool = False
) -> None:
    """As `comm.all_gather`."""
    _plain("all_gather", group, async_op)
    comm.all_gather(tensor_list, tensor)


def broadcast(tensor: Tensor, src: int, group: object = None, async_op: bool = False) -> None:
    """As `comm.broadcast`."""
    _plain("broadcast", group, async_op)
    comm.broadcast(tensor, src)


def reduce(
    tensor: Tensor,
    dst: int,
    op: str = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> None:
    """As `comm.reduce`."""
    _plain("reduce", group, async_op, op)
    comm.reduce(tensor, dst)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: str = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> None:
    """As `comm.reduce_scatter`."""
    _plain("reduce_scatter", group, async_op, op)
    comm.reduce_scatter(output, input_list)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    group: object = None,
    async_op: bool = False,
) -> None:
    """As `comm.gather`."""
    _plain("gather", group, async_op)
    comm.gather(tensor, gather_list, dst)
