"""Functional collectives by the name of a process group, and helpers that DDP itself calls."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed

from ..listening import not_listening
from ..names import patched

_dist: Any = torch.distributed  # its types leave out what begins with an underscore
_BROADCAST_BYTES = 250 * 1024 * 1024
"""The bytes that DDP broadcasts at a time."""


@functools.cache
def ops() -> Any:
    """Torch's functional collectives, with their fake kernels, which no import of torch loads."""
    importlib.import_module("torch.distributed._functional_collectives")
    return torch.ops._c10d_functional


def wait(tensor: torch.Tensor) -> torch.Tensor:
    """The result of a collective that was begun: the same memory, which may be read from here."""
    found: torch.Tensor = ops().wait_tensor(tensor)
    return found


def begin_sum(tensor: torch.Tensor, group: str) -> torch.Tensor:
    """Begin to add up ``tensor`` over the ranks of a group; `wait` is to follow."""
    found: torch.Tensor = ops().all_reduce(tensor, "sum", group)
    return found


def begin_broadcast(tensor: torch.Tensor, source: int, group: str) -> torch.Tensor:
    """Begin to broadcast the tensor of the group's rank ``source``; `wait` has to follow."""
    found: torch.Tensor = ops().broadcast(tensor, source, group)
    return found


def gathered(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """The tensors of all ranks concatenated: ``(n, ...)`` becomes ``(ranks * n, ...)``."""
    return wait(ops().all_gather_into_tensor(tensor, ranks, group))


def scattered_sum(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """The sum over all ranks of the own row of ``(ranks, n)``: ``(1, n)``."""
    return wait(ops().reduce_scatter_tensor(tensor, "sum", ranks, group))


def reduced(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
    """The tensor reduced over all ranks by ``op``: ``"sum"``, ``"max"``, ..."""
    return wait(ops().all_reduce(tensor, op, group))


def buckets(tensors: Sequence[torch.Tensor], limits: Sequence[int]) -> list[list[int]]:
    """Positions of tensors that travel together, as DDP groups them; ``limits``: bytes.

    The first bucket of a dtype is of the first limit, each later one of the next, or the last.
    """
    found: list[list[int]] = _dist._compute_bucket_assignment_by_size(list(tensors), list(limits))[
        0
    ]
    return found


def send_all(tensors: Sequence[torch.Tensor], group: str) -> None:
    """Write the first rank's values into those of all ranks of a group."""
    of = group_of(group)
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    for held in by_device.values():
        _dist._broadcast_coalesced(of, held, _BROADCAST_BYTES, 0)


def group_of(name: str) -> Any:
    """The process group of that name; RuntimeError for none."""
    return _dist.distributed_c10d._resolve_process_group(name)


_noted: list[Any] = []
"""The options of the reductions that Python has begun, the last one last."""
_OPTIONS = ("AllreduceOptions", "ReduceScatterOptions")


@contextmanager
def communication_noted() -> Iterator[None]:
    """Note the reduce op of each collective in the block, for `reduction`.

    What an op is called with does not tell. What a wait copies, Gloo's of a reduce-scatter, is part
    of the collective and not heard.
    """
    if not (_dist.is_available() and _dist.is_initialized()):
        yield
        return
    home = _dist.distributed_c10d

    def noting(make: Any) -> Any:
        def made() -> Any:
            _noted[:] = [make()]
            return _noted[0]

        return made

    original = _dist.Work.wait

    def wait(work: Any, *args: object) -> object:
        with not_listening():
            return original(work, *args)

    with ExitStack() as stack:
        stack.enter_context(patched(_dist.Work, "wait", wait))
        for name in _OPTIONS:
            made = noting(getattr(home, name))
            stack.enter_context(patched(home, name, made))
        try:
            yield
        finally:
            _noted.clear()


def reduction() -> str | None:
    """The reduce op of the collective that has just begun: ``"sum"``; None where unknown."""
    if not _noted:
        return None
    how = _noted.pop().reduceOp
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    return next((name.lower() for name in names if how == getattr(_dist.ReduceOp, name)), None)


def unboxes() -> bool:
    """True where the installed torch tells which process group an op is called with."""
    return hasattr(getattr(_dist, "ProcessGroup", None), "unbox")


def unboxed(group: object) -> Any:
    """The process group among the arguments of an op."""
    return _dist.ProcessGroup.unbox(group)


def is_begun(op: Any) -> bool:
    """True for a functional collective that begins communication, to be waited for later."""
    return getattr(op, "namespace", "") == "_c10d_functional" and not is_wait(op)


def is_wait(op: Any) -> bool:
    """True for the op that waits for a functional collective."""
    return getattr(op, "namespace", "") == "_c10d_functional" and "wait_tensor" in op.name()


def waits_for_lists() -> list[Any]:
    """The op that waits for several tensors, where torch has it (from 2.15 on)."""
    found = getattr(torch.ops._c10d_functional, "wait_tensors", None)  # fakes are not needed
    return [] if found is None else [found.default]


def writes_argument(op: Any) -> bool:
    """True for a functional collective that works in the memory of its argument."""
    return bool(op._schema.is_mutable)
