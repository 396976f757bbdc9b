"""Replicas: the copies of one model that the ranks of a process group train together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .._torch.distributed import collectives
from .._torch.distributed.held import as_dtensor, layout_of, local
from .._torch.tensors import version_of
from .agreement import Agreement
from .errors import OutsideOfStep
from .parallel import DataParallel
from .reducer import averaged, spread
from .zero.shards import Shards

_unsynced: ContextVar[bool] = ContextVar("_unsynced", default=False)
_entered = 0
"""How often `no_sync` was entered."""


@contextmanager
def no_sync() -> Iterator[None]:
    """In the block, ``backward()`` of a data-parallel `tg.step` averages nothing over the ranks.

    Gradients add up in ``.grad``; the next ``backward()`` outside of it averages their sums, as
    that of `DistributedDataParallel.no_sync` does.
    """
    global _entered
    _entered += 1
    token = _unsynced.set(True)
    try:
        yield
    finally:
        _unsynced.reset(token)


def inside_no_sync() -> bool:
    """True in the block of `no_sync`."""
    return _unsynced.get()


def _always() -> bool:
    return not inside_no_sync()


class Reduced(NamedTuple):
    """Record of one gradient reduction over a group, with positions among its parameters."""

    group: str
    names: str
    """A hash of the names of all parameters of the group."""
    mine: tuple[int, ...]
    """The parameters that have a gradient on this rank."""
    used: tuple[int, ...]
    """The parameters that have a gradient on any rank."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Parameters that are averaged over one process group."""

    parallel: DataParallel
    parameters: Mapping[str, torch.Tensor]
    """By name, in the order of their modules."""
    buffers: Sequence[torch.Tensor] = ()
    """Buffers that are broadcast from the first rank before a step."""
    syncs: Callable[[], bool] = _always
    """True where a backward pass is to average."""
    starts: bool = True
    """True where parameters and buffers are still to be made equal."""


@dataclass
class Replicas:
    """Data parallelism of one Graph: its groups, their gradients, and the agreements of ranks."""

    groups: list[ReplicaGroup] = field(default_factory=list)
    """The groups of the step as it was scanned last."""
    armed: set[int] = field(default_factory=set)
    """DDP modules, by id, whose forward has run and whose gradients are to be averaged."""
    late: bool = False
    """True where the update averages gradients before all else, and no backward pass does."""
    shards: Shards | None = None
    """The parameters that lie in parts; None where none does."""
    reduced: list[Reduced] = field(default_factory=list)
    """The reductions of the running call, in order."""
    _agreements: dict[str, Agreement] = field(default_factory=dict)
    _known: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    """Tensors that were made equal."""
    _entered: int = 0
    """How often `no_sync` had been entered when the running call began."""

    def begin(self) -> None:
        """Begin a call: broadcast parameters that are new to it from the first rank.

        Raises:
            RanksDiffer: the ranks have other parameters.
        """
        self._entered = _entered
        self.armed.clear()
        self.reduced.clear()
        for group in self.groups:
            held = [*group.parameters.values(), *group.buffers]
            new = [local(tensor).detach() for tensor in held if tensor not in self._known]
            if group.starts and new:
                self._agreement(group.parallel.group).check_alike(group.parameters)
                collectives.send_all(new, group.parallel.group)
                self._known.update(dict.fromkeys(held, True))

    def spread(self) -> None:
        """Broadcast buffers from the first rank."""
        for group in self.groups:
            if group.parallel.broadcast_buffers and group.buffers:
                spread(group.buffers, group.parallel.group)

    def average(self, owned: Iterable[torch.Tensor]) -> None:
        """Average the gradients of parameters that the user's code cannot read in between.

        Raises:
            OutsideOfStep: the step was inside of `no_sync`, and its update is the Graph's.
        """
        if self.groups and self._entered != _entered:
            raise OutsideOfStep(
                "build enters tg.no_sync(), and the update, with the averages, is the Graph's.",
                fix="config.set_gradient_accumulation_steps(k) averages once for k micro-batches.",
            )
        if not self.late:  # each backward pass has
            return
        mine = set(map(id, owned))
        for group in self.groups:
            if group.syncs():
                held = {n: p for n, p in group.parameters.items() if id(p) in mine}
                self._average(group, held, [p.grad is not None for p in held.values()], keep=False)
        self._reduce()

    def marks(self) -> list[list[object]]:
        """The state of each gradient, by which `average_since` finds those written afterwards."""
        return [[_mark(p) for p in group.parameters.values()] for group in self.groups]

    def average_since(self, marks: Sequence[Sequence[object]], *, keep: bool) -> None:
        """Average the gradients written since `marks`.

        Args:
            keep: write the means into the gradients' own memory.
        """
        for group, before in zip(self.groups, marks, strict=True):
            if group.syncs():
                now = map(_mark, group.parameters.values())
                touched = [one != other for one, other in zip(now, before, strict=True)]
                self._average(group, group.parameters, touched, keep=keep)
        self._reduce()
        self.armed.clear()
        if self.shards is not None:
            self.shards.spoil()

    def unreduced(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(sharded parameter, the gathered tensor that holds its gradient so far)."""
        return iter(()) if self.shards is None else self.shards.unreduced()

    def refuse_write(self, tensor: torch.Tensor) -> None:
        """Raise NotSupported for a write into a gathered parameter."""
        if self.shards is not None:
            self.shards.refuse_write(tensor)

    def covers(self, parameter: torch.Tensor) -> bool:
        """True for a sharded parameter."""
        return self.shards is not None and self.shards.holds(parameter)

    def _reduce(self) -> None:
        if self.shards is not None and _always():
            self.shards.reduce(partial(self._agreed_over, self.shards.groups, self.shards.names))

    def _average(
        self,
        group: ReplicaGroup,
        parameters: Mapping[str, torch.Tensor],
        has: Sequence[bool],
        *,
        keep: bool,
    ) -> None:
        if not parameters:
            return
        held = list(parameters.values())
        used = self._agreed(group.parallel.group, list(parameters), has)
        # From the last layer to the first, which is about how a backward pass makes them.
        own = [held[number] for number in reversed(used)]
        with torch.no_grad():
            found = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
            means = averaged([local(gradient) for gradient in found], group.parallel)
            for parameter, before, mean in zip(own, found, means, strict=True):
                if keep and parameter.grad is not None:
                    local(parameter.grad).copy_(mean)
                    continue
                layout = layout_of(before)
                own_mean = mean.clone() if keep else mean
                parameter.grad = own_mean if layout is None else as_dtensor(own_mean, layout)

    def _agreed(self, group: str, names: list[str], has: Sequence[bool]) -> list[int]:
        """The positions of the parameters for which any rank has a gradient."""
        mine = [number for number, each in enumerate(has) if each]
        used = self._agreement(group).union(mine)
        of = hashlib.blake2s("\0".join(names).encode(), digest_size=8).hexdigest()
        self.reduced.append(Reduced(group, of, tuple(mine), tuple(used)))
        return used

    def _agreed_over(
        self, groups: Sequence[str], names: list[str], has: Sequence[bool]
    ) -> list[int]:
        """The positions of the parameters with a gradient on any rank of any of several groups."""
        for group in groups:
            used = set(self._agreed(group, names, has))
            has = [number in used for number in range(len(has))]
        return [number for number, each in enumerate(has) if each]

    def _agreement(self, name: str) -> Agreement:
        if name not in self._agreements:
            self._agreements[name] = Agreement(name)
        return self._agreements[name]


def _mark(parameter: torch.Tensor) -> object:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), version_of(gradient))
