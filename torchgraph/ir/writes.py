"""Memory that a lowered program writes, and a check that each read sees the value it names.

A value of a functional program is what its node computed. In a lowered program several values lie
in one memory, one after the other; a read is right while the memory still holds the value read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import fx
from torch.fx.node import Argument

from .._torch import OpOverload, schema_of
from . import effects
from .aliasing import span, storages_of
from .program import SKIPPED_BY, Program, Role


@runtime_checkable
class Writing(Protocol):
    """A target, no op of torch, that says which of its arguments a call writes."""

    def writes(self, args: Sequence[Argument]) -> list[fx.Node]:
        """The arguments, nodes, that a call with ``args`` writes."""


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that a call writes; all that it is given, where nothing says which."""
    if node.op != "call_function" or not effects.of(node).mutates:
        return []
    target: object = node.target
    if not isinstance(target, OpOverload):
        return target.writes(node.args) if isinstance(target, Writing) else node.all_input_nodes
    outs = [node.kwargs[one.name] for one in schema_of(target).arguments if one.is_out]
    found: list[fx.Node] = []
    fx.map_arg(outs or effects.written_values(target, node.args), found.append)
    return found or node.all_input_nodes


class Fault(NamedTuple):
    """A read or a write that a rule forbids."""

    node: fx.Node
    why: str


class Memory:
    """The memories of a lowered program while it is gone through, node by node."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._merged: dict[int, int] = {}
        """Storage of a fake value -> the one whose memory an in-place op put it in."""
        self._version: dict[int, int] = {}
        """The number of writes to each memory."""
        self._holds: dict[fx.Node, dict[int, int]] = {}
        """node -> the version of each of its memories that is its value."""
        self._lasting: dict[int, dict[str, fx.Node]] = {}
        """Memory that outlives the step -> what lies there and is not to be written, by name."""
        self._states: dict[int, list[str]] = {}
        """Memory -> the states there that the step updates."""
        self._skipped_by: dict[int, str | None] = {}
        """Memory of a state -> the flag that leaves it as it is."""

    def faults(self) -> Iterator[Fault]:
        """All faults of the program, in order."""
        updated = self._program.signature.written
        for spec, node in self._program.inputs():
            for storage in storages_of(node) if spec.role is not Role.ACCUMULATOR else ():
                if spec.fqn in updated:
                    self._states.setdefault(storage, []).append(spec.fqn)
                else:
                    self._lasting.setdefault(storage, {})[spec.fqn] = node
        last_expect = None
        nodes = list(self._program.nodes)
        for node in nodes:
            last_expect = node if effects.of(node).expects else last_expect
        proven = last_expect is None
        for node in nodes:
            for storage in storages_of(node) if node.op == "get_attr" else ():
                self._lasting.setdefault(storage, {})[f"the constant {node.target}"] = node
            yield from self._reads(node)
            yield from self._writes(node, proven)
            proven = proven or node is last_expect

    def _memory(self, node: fx.Node) -> list[int]:
        return [self._home(storage) for storage in storages_of(node)]

    def _home(self, storage: int) -> int:
        while storage in self._merged:
            storage = self._merged[storage]
        return storage

    def _reads(self, node: fx.Node) -> Iterator[Fault]:
        overwritten = _overwritten(node)
        for read in node.all_input_nodes:
            if read in overwritten:
                continue
            # An item is one of many values: reading it reads none of the others.
            looked_at = node if node.target is operator.getitem else read
            now = {home: self._version.get(home, 0) for home in self._memory(looked_at)}
            held = self._holds.get(read, {})
            if any(held.get(home, 0) != version for home, version in now.items()):
                yield Fault(node, f"{node.name} reads {read.name}, which was overwritten before")
            flag = read.meta.get(SKIPPED_BY)
            if flag is not None and node.op != "output" and node.meta.get(SKIPPED_BY) != flag:
                yield Fault(node, f"{node.name} reads {read.name}, which a skipped step leaves out")

    def _writes(self, node: fx.Node, proven: bool) -> Iterator[Fault]:
        written = written_by(node)
        for target in written:
            for home in self._memory(target):
                yield from self._write(node, target, home, proven)
        if written and _returns_what_it_writes(node):
            yield from self._returns(node, written[0])
        elif written:  # nothing is returned: who reads an argument later means its new value
            for target in written:
                self._holds[target] = {h: self._version.get(h, 0) for h in self._memory(target)}
        self._holds[node] = {home: self._version.get(home, 0) for home in self._memory(node)}

    def _write(self, node: fx.Node, target: fx.Node, home: int, proven: bool) -> Iterator[Fault]:
        for name, held in self._lasting.get(home, {}).items():
            if not (home in self._states and _apart(target, held)):
                yield Fault(node, f"{node.name} writes {name}, which no step may")
        states = self._states.get(home, [])
        if states and not proven:
            yield Fault(node, f"{node.name} writes {states[0]} before the last predicate has held")
        if len(states) == 1:  # states in one memory may be of several optimizers
            flag = node.meta.get(SKIPPED_BY)
            if self._skipped_by.setdefault(home, flag) != flag:
                yield Fault(node, f"{node.name} writes {states[0]} whatever its flag says")
        self._version[home] = self._version.get(home, 0) + 1

    def _returns(self, node: fx.Node, target: fx.Node) -> Iterator[Fault]:
        """The result is the written argument: it lies in that memory, as it is laid out there."""
        value, held = node.meta["val"], target.meta["val"]
        if not isinstance(held, torch.Tensor):
            return
        closing = node.target is torch.ops.aten.copy_.default
        if not closing and _layout(value) != _layout(held):
            yield Fault(node, f"{node.name} is laid out otherwise than what it is written over")
        own, home = self._home(next(storages_of(node))), self._home(next(storages_of(target)))
        if own != home:
            self._merged[own] = home


def _apart(one: fx.Node, other: fx.Node) -> bool:
    """True for two inputs that lie in one memory, one behind the other."""
    if one.op != "placeholder":
        return False
    start, end = span(one.meta["val"])
    other_start, other_end = span(other.meta["val"])
    return end <= other_start or other_end <= start


def _overwritten(node: fx.Node) -> set[fx.Node]:
    """The arguments that a call writes whole, whatever they hold."""
    found: list[fx.Node] = []
    if node.target is torch.ops.aten.copy_.default:
        fx.map_arg(node.args[0], found.append)
        read = node.args[1:]
    elif isinstance(node.target, OpOverload):
        outs = {one.name for one in schema_of(node.target).arguments if one.is_out}
        fx.map_arg([node.kwargs[name] for name in outs], found.append)
        read = node.args
    else:
        return set()
    also: list[fx.Node] = []
    fx.map_arg(read, also.append)
    return set(found) - set(also)


def _returns_what_it_writes(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or not schema_of(node.target).returns:
        return False
    alias = schema_of(node.target).returns[0].alias_info
    return alias is not None and alias.is_write


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
