"""Lifetimes: what memory a lowered program allocates, from when until when, and what shares it.

Read off the program alone: views share their source's storage, as the fake values tell, and what an
op writes in place is the argument that it writes, as its schema tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import fx

from .._torch import OpOverload, schema_of, storage_id
from ..ir.aliasing import read_in_flight, storages_of
from ..ir.program import Program
from ..ir.values import leaves


@dataclass(frozen=True)
class Allocation:
    """Memory that one call allocates for one of its results, views and in-place results included.

    Positions count the nodes of the program. The memory is taken from the start of ``born`` to the
    end of ``dies``: what ``dies`` reads is not free before it has run.
    """

    node: fx.Node
    """The call."""
    result: int
    """The index of the result."""
    nbytes: int
    """0 when nobody knows before the program runs."""
    born: int
    dies: int
    returned: bool
    """True when the caller gets it."""
    known: bool = True
    """False for a result whose size depends on data."""

    def meets(self, other: Allocation) -> bool:
        """True when both are needed at one time."""
        return self.born <= other.dies and other.born <= self.dies


class Lifetimes:
    """The allocations of a lowered program, without those of states, inputs and constants."""

    def __init__(self, program: Program) -> None:
        self.nodes = list(program.nodes)
        self._homes: dict[int, int] = {}
        """Storage -> the storage that is the same memory."""
        self._owners: dict[int, tuple[fx.Node, int, int | None]] = {}
        """Storage -> (the call that allocates it, which result, bytes)."""
        self._foreign: set[int] = set()
        self._position = {node: position for position, node in enumerate(self.nodes)}
        for node in self.nodes:
            self._enter(node)
        self.values = tuple(self._values())
        self._by_result = {(value.node, value.result): value for value in self.values}

    def of(self, node: fx.Node, result: int = 0) -> Allocation | None:
        """The allocation of ``node`` for one of its results; None when it allocates none."""
        return self._by_result.get((node, result))

    def memory(self, node: fx.Node) -> list[Allocation]:
        """The allocations behind the node's value; states, inputs and constants left out."""
        found = (self._owners.get(self._home(storage)) for storage in storages_of(node))
        return [self._by_result[owner[:2]] for owner in found if owner is not None]

    def last_use(self, node: fx.Node) -> int:
        """The position of the last node that reads exactly this one; its own when none does."""
        return max((self._position[user] for user in node.users), default=self._position[node])

    def _enter(self, node: fx.Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            self._foreign.update(storages_of(node))
            return
        if node.op != "call_function":
            return
        for result, value in enumerate(results(node)):
            if not isinstance(value, torch.Tensor):
                continue
            storage = storage_id(value)
            written = _written_for(node, result)
            if written is not None:
                self._same(storage, written)
            elif not self._is_known(self._home(storage)):
                size = value.untyped_storage().nbytes()
                self._owners[storage] = (node, result, size if type(size) is int else None)

    def _is_known(self, storage: int) -> bool:
        return storage in self._owners or storage in self._foreign

    def _same(self, storage: int, written: fx.Node) -> None:
        home = self._home(next(storages_of(written)))
        if self._home(storage) != home:
            self._homes[self._home(storage)] = home

    def _home(self, storage: int) -> int:
        while storage in self._homes:
            storage = self._homes[storage]
        return storage

    def _values(self) -> Iterator[Allocation]:
        end = len(self.nodes) - 1
        dies: dict[int, int] = {}
        for node in self.nodes:
            last = self.last_use(node)
            for storage in map(self._home, storages_of(node)):
                dies[storage] = max(dies.get(storage, -1), last)
        for read, wait in read_in_flight(self.nodes):
            storage, until = self._home(read), end if wait is None else self._position[wait]
            dies[storage] = max(dies.get(storage, -1), until)
        for storage, (node, result, size) in self._owners.items():
            known = size is not None
            last = dies[storage]
            yield Allocation(
                node, result, size or 0, self._position[node], last, last == end, known=known
            )


def live_bytes(
    values: Iterable[Allocation], length: int, taken: Callable[[int], int] = int
) -> list[int]:
    """The bytes that are taken while each of ``length`` nodes runs.

    ``taken`` gives what a value of that size takes.
    """
    change = [0] * (length + 1)
    for value in values:
        size = taken(value.nbytes)
        change[value.born] += size
        change[value.dies + 1] -= size
    return list(accumulate(change[:-1]))


def peak(lifetimes: Lifetimes, workspaces: Mapping[fx.Node, int] | None = None) -> int:
    """The most bytes that the program has allocated at one time, with those of its kernels."""
    return most(live_bytes(lifetimes.values, len(lifetimes.nodes)), lifetimes, workspaces or {})


def most(live: Iterable[int], lifetimes: Lifetimes, workspaces: Mapping[fx.Node, int]) -> int:
    """The largest of ``live``, the bytes at each node, and the node's workspace together."""
    pairs = zip(live, lifetimes.nodes, strict=True)
    return max((count + workspaces.get(node, 0) for count, node in pairs), default=0)


def results(node: fx.Node) -> Sequence[Any]:
    """The fake values of what a call returns.

    A batch norm that writes its statistics in place returns less than the functional one, whose
    values it still carries.
    """
    found = list(leaves(node.meta.get("val")))
    op = node.target
    returned = len(schema_of(op).returns) if isinstance(op, OpOverload) else 0
    return found[:returned] if returned > 1 else found


def _written_for(node: fx.Node, result: int) -> fx.Node | None:
    """The argument that a result of an op is, when the op writes it in place."""
    op = node.target
    if not isinstance(op, OpOverload) or not schema_of(op).is_mutable:
        return None
    returns = schema_of(op).returns
    alias = returns[result].alias_info if result < len(returns) else None
    if alias is None:
        return None
    names = alias.before_set
    for position, argument in enumerate(schema_of(op).arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == names:
            given = node.args[position] if position < len(node.args) else None
            found = node.kwargs.get(argument.name, given)
            return found if isinstance(found, fx.Node) else None
    return None
