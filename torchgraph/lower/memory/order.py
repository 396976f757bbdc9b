"""The order of a program's nodes: OneFlow's modes of ``enable_straighten_algorithm``.

An order is a program of its own, with the same nodes. Random draws, collectives and opaque calls
keep their order among each other, and so do predicates, which nothing passes that relies on them or
may write a state; an update waits for all that reads the state that it writes, so that it may still
be written in place. Which order is best, only lowering can tell: a mode offers
several.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import fx

from ..._torch import OpOverload, graph_module, schema_of, storage_id
from ...ir import effects
from ...ir.aliasing import alias_sources, storages_of
from ...ir.program import Phase, Program, provenance
from ...ir.values import tensors_of
from ..agreements import communicates
from ..expects import expects_of, guards
from .rows_apart import apart

_SHORT = frozenset({"aten::_to_copy", "aten::expand", "aten::fill", "aten::full", "aten::zeros"})
"""Besides views: what OneFlow calls a short GPU op."""


class Order(NamedTuple):
    """A program in some order."""

    name: str
    program: Program


class Offer(NamedTuple):
    """The orders that a mode offers for a program, and a remark."""

    orders: Iterator[Order]
    note: str = ""
    """Why the mode cannot matter here; empty when it can."""
    for_speed: bool = False
    """True when the mode's order is to be taken whatever its peak."""


def orders(program: Program, mode: str) -> Offer:
    """The orders of a functional program that ``mode`` tries."""
    own = Order("its own order", program)
    devices = {value.device.type for node in program.nodes for value in tensors_of(node)}
    apart = communicates(program)
    if mode == "SpeedFirst":
        if len(devices) > 1 or apart:
            fast = _ordered(program, "longest way first", _longest_way)
            return Offer(iter((fast,)), for_speed=True)
        return Offer(iter((own,)), "one device and no collectives: there is nothing to overlap")
    if mode == "OverlapCpuGpu":
        if len(devices) > 1:
            return Offer(iter((_ordered(program, "host ops last", _host_last),)), for_speed=True)
        note = "one device: nothing to overlap, so it is MemoryFirst"
        return Offer(_memory_first(own), note)
    if mode == "DelayShortGpu":
        return Offer(iter((own, _ordered(program, "short ops late", _short_late))))
    return Offer(_memory_first(own) if mode == "MemoryFirst" else iter((own,)))


def _memory_first(own: Order) -> Iterator[Order]:
    yield own
    yield (early := _ordered(apart(own.program), "early updates", _early_updates))
    yield _ordered(early.program, "early updates, smallest backward", _smallest(Phase.BACKWARD))
    yield _ordered(early.program, "smallest first", _smallest(Phase.FORWARD))


_Key = Callable[[fx.Node, "_Schedule"], Any]
_Rule = Callable[["_Graph"], _Key]


class _Graph:
    """The nodes of a program with all that a node has to wait for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls = [node for node in program.nodes if node.op in ("call_function", "get_attr")]
        self.position = {node: i for i, node in enumerate(program.nodes)}
        self.waits: dict[fx.Node, set[fx.Node]] = {
            node: {source for source in node.all_input_nodes if source.op != "placeholder"}
            for node in self.calls
        }
        ordered = [node for node in self.calls if effects.of(node).ordered]
        for before, after in itertools.pairwise(ordered):
            self.waits[after].add(before)
        self._keep_states_readable()
        self._keep_behind_expects()
        self.readers: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.calls}
        for node, sources in self.waits.items():
            for source in sources:
                self.readers[source].append(node)

    def _keep_states_readable(self) -> None:
        """Let ops that may write a state wait for those that only read it."""
        states = self.program.states()
        shown: dict[fx.Node, set[fx.Node]] = {state: {state} for state in states}
        readers: dict[fx.Node, tuple[list[fx.Node], list[fx.Node]]] = {s: ([], []) for s in states}
        for node in self.calls:
            for source in node.all_input_nodes:
                for state in shown.get(source, ()):
                    readers[state][provenance(node).phase is Phase.UPDATE].append(node)
            sources = alias_sources(node)
            if sources:
                shown[node] = set().union(*(shown.get(source, set()) for source in sources))
        for early, late in readers.values():
            for node in late:
                before = self.position[node]
                self.waits[node].update(n for n in early if self.position[n] < before)

    def _keep_behind_expects(self) -> None:
        """Keep nodes behind the predicates that they rely on, or that guard writes of states."""
        for node, predicates in guards(self.program).items():
            self.waits[node].update(predicates)
        last = next(reversed(expects_of(self.program)), None)
        if last is None:
            return
        states = {storage for node in self.program.placeholders for storage in storages_of(node)}
        for node in self.calls:
            if self.position[node] > self.position[last] and _read(node) & states:
                self.waits[node].add(last)


class _Schedule:
    """A list scheduler: which nodes can run, and what memory would come and go."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self._left = {node: len(sources) for node, sources in graph.waits.items()}
        self._unread: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._own: set[int] = set()
        for node in graph.calls:
            for value in tensors_of(node):
                storage, size = storage_id(value), value.untyped_storage().nbytes()
                self._bytes[storage] = size if type(size) is int else 0
                if node.op == "call_function":
                    self._own.add(storage)
        new_states = graph.program.states().values()  # which will be written in place
        for node in (*graph.program.placeholders, *new_states):
            self._own.difference_update(storages_of(node))
        self._readers: dict[int, list[fx.Node]] = {}
        for node in graph.program.nodes:
            for storage in _read(node):
                self._unread[storage] = self._unread.get(storage, 0) + 1
                self._readers.setdefault(storage, []).append(node)
        self._made: set[int] = set()
        self._changes: dict[fx.Node, int] = {}

    def change(self, node: fx.Node) -> int:
        """The change of allocated bytes when ``node`` runs."""
        found = self._changes.get(node)
        if found is None:
            found = self._changes[node] = self._change(node)
        return found

    def _change(self, node: fx.Node) -> int:
        made = set(storages_of(node)) & (self._own - self._made)
        gone = {s for s in _read(node) & self._own if self._unread[s] == 1 and s not in made}
        return sum(self._bytes[s] for s in made) - sum(self._bytes[s] for s in gone)

    def run(self, key: _Key) -> list[fx.Node]:
        """Schedule all calls: of those that are ready, the one with the least key runs next.

        The results of an op are taken apart at once: until then all of them are kept.
        """
        waiting = [node for node, count in self._left.items() if not count]
        done: list[fx.Node] = []
        place = self.graph.position
        while waiting:
            node = min(
                waiting,
                key=lambda n: (n.target is not operator.getitem, key(n, self), place[n]),
            )
            waiting.remove(node)
            waiting.extend(self._finish(node))
            done.append(node)
        return done

    def _finish(self, node: fx.Node) -> list[fx.Node]:
        """Mark ``node`` as run; return the readers that became ready."""
        self._made.update(storages_of(node))
        for storage in _read(node):
            self._unread[storage] -= 1
            if self._unread[storage] == 1:
                for reader in self._readers[storage]:
                    self._changes.pop(reader, None)
        for reader in self.graph.readers[node]:
            self._left[reader] -= 1
        return [reader for reader in self.graph.readers[node] if not self._left[reader]]


# --- the rules -----------------------------------------------------------------------------------


def _early_updates(graph: _Graph) -> _Key:
    """Order each update directly after its gradient, and no earlier than the end of forward.

    A forward part that fails must find nothing updated.
    """
    forward = [n for n in graph.calls if provenance(n).phase is Phase.FORWARD]
    ends = max(map(graph.position.__getitem__, forward), default=0)
    keys: dict[fx.Node, int] = {}
    for node in graph.calls:
        keys[node] = graph.position[node]
        if provenance(node).phase is Phase.UPDATE:
            keys[node] = max((keys[source] for source in graph.waits[node]), default=0)
            keys[node] = max(keys[node], ends)
    return lambda node, _: keys[node]


def _smallest(start: Phase) -> _Rule:
    """A rule: from the phase ``start`` on, the op that frees most or takes least comes first."""

    def rule(graph: _Graph) -> _Key:
        forward = {n for n in graph.calls if provenance(n).phase is Phase.FORWARD}
        stays = forward if start is Phase.BACKWARD else set()

        def key(node: fx.Node, schedule: _Schedule) -> Any:
            return (node not in forward, node not in stays and schedule.change(node))

        return key

    return rule


def _longest_way(graph: _Graph) -> _Key:
    """Order calls by the longest chain of ops that depends on them, longest first."""
    length: dict[fx.Node, int] = {}
    for node in reversed(graph.calls):
        length[node] = 1 + max((length[reader] for reader in graph.readers[node]), default=0)
    return lambda node, _: -length[node]


def _host_last(graph: _Graph) -> _Key:
    """Order host ops last, so that the device works on ops started before."""
    host = {n for n in graph.calls if all(v.device.type == "cpu" for v in tensors_of(n))}
    return lambda node, _: node in host


def _short_late(graph: _Graph) -> _Key:
    """Views and casts right before their first reader."""
    keys: dict[fx.Node, tuple[int, int]] = {}
    for node in reversed(graph.calls):
        keys[node] = (graph.position[node], 1)
        readers = [keys[reader] for reader in graph.readers[node]]
        if readers and _is_short(node):
            keys[node] = (min(readers)[0], 0)
    return lambda node, _: keys[node]


# --- pieces --------------------------------------------------------------------------------------


def _ordered(program: Program, name: str, rule: _Rule) -> Order:
    graph = _Graph(program)
    done = _Schedule(graph).run(rule(graph))
    assert len(done) == len(graph.calls)
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (*program.placeholders, *done, program.output):
        copies[node] = made.node_copy(node, copies.__getitem__)
    gm = graph_module(program.gm, made)
    return Order(name, Program(gm, program.signature, list(program.history)))


def _is_short(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or not effects.of(node).pure:
        return False
    return bool(alias_sources(node)) or schema_of(node.target).name in _SHORT


def _read(node: fx.Node) -> set[int]:
    """The storages that a node reads."""
    if node.target is operator.getitem:
        return set()
    return set().union(*map(storages_of, node.all_input_nodes))
