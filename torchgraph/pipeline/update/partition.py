"""Partition of the optimizer's step of a pipeline: each rank updates what its stages read.

What needs values of several ranks, as a norm over all gradients does, is computed by all of them,
after they were handed over. So the update runs in segments, and ranks exchange values between.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from ..._torch import graph_module
from ...distributed.errors import NotPipelined
from ...ir.names import parameter_of
from ...ir.program import (
    InputSpec,
    OutputKind,
    OutputSpec,
    Program,
    Role,
    TensorMeta,
    provenance,
)
from ...ir.values import mode_of, own_like, valued
from ..cut import Cut
from ..extract import Extract, Given
from .rows import apart

aten = torch.ops.aten

Ranks = frozenset[int]
"""Positions in the pipeline, not ranks of the world."""


def update_of(cut: Cut) -> Program:
    """The update of a step as a program: of the step's inputs and the shares of all gradients."""
    program, graph = cut.program, fx.Graph()
    copies = {node: graph.node_copy(node) for node in program.placeholders}
    specs = list(program.signature.inputs)
    for one in cut.gradients:
        for leaf, share in one.shares.items():
            own = own_like(mode_of(program), leaf.meta["val"])
            node = graph.placeholder(f"gradient_{len(specs)}")
            node.meta.update(val=own, provenance=provenance(leaf))
            specs.append(InputSpec(node.name, Role.ACCUMULATOR, share.name, TensorMeta.of(own)))
            copies[leaf] = node

    def total(tree: object, mark: fx.Node) -> fx.Node:
        if isinstance(tree, fx.Node):
            return copies[tree]
        assert isinstance(tree, tuple)
        args = tuple(total(one, mark) for one in tree)
        node = valued(mode_of(program), graph.call_function(aten.add.Tensor, args))
        node.meta["provenance"] = provenance(mark)
        return node

    copies.update((one.mark, total(one.tree, one.mark)) for one in cut.gradients)
    copies.update((value, copies[state]) for value, state in cut.parts.held().items())
    for node in program.nodes:
        if node.op == "get_attr" or node in cut.parts.late:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [pair for pair in program.returns() if not cut.parts.is_early(*pair)]
    graph.output(tuple(copies[v] if isinstance(v, fx.Node) else v for _, v in outputs))
    signature = replace(
        program.signature,
        inputs=tuple(specs),
        outputs=tuple(out for out, _ in outputs),
        micro_batches=1,
    )
    return Program(graph_module(program.gm, graph), signature)


@dataclass(frozen=True)
class Transfer:
    """A value of the update that one rank sends to others."""

    name: str
    meta: TensorMeta
    source: int
    targets: Ranks


@dataclass(frozen=True)
class Segment:
    """The program of a rank between two exchanges of the update."""

    program: Program
    states: tuple[int, ...]
    """Which inputs of the update it takes, first."""
    takes: tuple[str, ...]
    """Values of earlier segments, or of other ranks."""
    gives: tuple[str, ...]
    """What it returns besides the outputs of the step."""


class UpdatePartition:
    """The update of a step, divided into segments for each rank and exchanges between them.

    Args:
        update: what `update_of` returns.
        owners: the position in the pipeline of each stage.
        watched: states that the host reads on every rank.
    """

    def __init__(
        self, cut: Cut, update: Program, owners: Sequence[int], watched: Container[str] = ()
    ) -> None:
        self._cut, self._owners, self._watched = cut, owners, watched
        self.everybody: Ranks = frozenset(owners)
        homes = {spec.name: self._home_of(spec) for spec in update.signature.inputs}
        self._update = update = apart(update, homes, self.everybody)
        self._homes: dict[fx.Node, Ranks] = {}
        self._levels: dict[fx.Node, int] = {}
        self._wanted: dict[tuple[fx.Node, int], None] = {}
        """(value, rank that lacks it)."""
        self._states = {spec.fqn: node for spec, node in update.inputs()}
        for spec, node in update.inputs():
            self._homes[node], self._levels[node] = homes[spec.name], 0
        for node in update.nodes:
            if node.op in ("call_function", "get_attr"):
                self._place(node)
        self.returned = {out.target: self._return(out, v) for out, v in update.returns()}
        """Which ranks have an output."""
        self.exchanges = self._exchanges()
        """What is handed over after each segment but the last."""
        self.count = 1 + max([*self._levels.values(), *(segment + 1 for segment in self.exchanges)])
        self._segments = self._delayed()
        self._check_reads()

    def _home_of(self, spec: InputSpec) -> Ranks:
        """The ranks that hold the right value of an input."""
        if spec.role is Role.ACCUMULATOR:
            share = next(
                share
                for one in self._cut.gradients
                for share in one.shares.values()
                if share.name == spec.fqn
            )
            return frozenset({self._owners[share.place.stage]})
        early = spec.fqn in self._cut.stages.written
        return self._ranks_of(spec) if early or self._may_be_remote(spec) else self.everybody

    def _may_be_remote(self, spec: InputSpec) -> bool:
        """True for a state whose dtype has NaN, which remote states read as."""
        inexact = spec.meta is not None and (
            spec.meta.dtype.is_floating_point or spec.meta.dtype.is_complex
        )
        return inexact and spec.fqn not in self._watched

    def _ranks_of(self, spec: InputSpec) -> Ranks:
        """The ranks whose stages read a state, or the parameter that it belongs to."""
        owner = parameter_of(spec.fqn) or spec.fqn
        number = self._positions.get(owner)
        if number is None:
            return self.everybody
        found = self._cut.program.signature.inputs[number]
        written = found.fqn in self._cut.stages.written
        stages = self._cut.readers_of(self._cut.program.placeholders[number])
        if not (found.role is Role.PARAMETER or written) or not stages:
            return self.everybody
        return frozenset(self._owners[stage] for stage in stages)

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        inputs = self._cut.program.signature.inputs
        return {spec.fqn: number for number, spec in enumerate(inputs)}

    @functools.cached_property
    def owned(self) -> dict[int, Ranks]:
        """Position of an input that only some ranks write -> these ranks."""
        outs = self._cut.program.signature.outputs
        written = {out.target for out in outs if out.kind is OutputKind.UPDATE}
        return {
            number: self._home_of(spec)
            for number, spec in enumerate(self._cut.program.signature.inputs)
            if spec.fqn in written
            and spec.meta is not None
            and self._home_of(spec) != self.everybody
        }

    def transfers_to_all(self) -> list[Transfer]:
        """Transfers, after each step, of the states that cannot be remote."""
        inputs = self._cut.program.signature.inputs
        found = [(n, inputs[n].meta) for n in self.owned if not self._may_be_remote(inputs[n])]
        return [self.to_all(number, meta) for number, meta in found if meta is not None]

    def to_all(self, number: int, meta: TensorMeta) -> Transfer:
        """The transfer of a state from a rank that owns it to all that do not."""
        ranks = self.owned[number]
        return Transfer(str(number), meta, min(ranks), self.everybody - ranks)

    def _place(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        home = self.everybody.intersection(*(self._homes[one] for one in inputs))
        self._homes[node] = home or self.everybody
        self._levels[node] = max((self._level_at(one, node) for one in inputs), default=0)

    def _level_at(self, value: fx.Node, reader: fx.Node) -> int:
        return max((self._want(value, rank) for rank in self._homes[reader]), default=0)

    def _want(self, value: fx.Node, rank: int) -> int:
        """The segment in which ``rank`` can read a value; notes that it has to be sent there."""
        if rank in self._homes[value]:
            return self._levels[value]
        self._wanted[value, rank] = None
        return self._levels[value] + 1

    def _return(self, out: OutputSpec, value: object) -> Ranks:
        """The ranks that return a result: for a state those that own it, for a number all."""
        if not isinstance(value, fx.Node):
            return self.everybody
        if out.kind is OutputKind.USER:
            return self._homes[value]
        target = self._states.get(out.target)
        tensor = target is not None and isinstance(target.meta.get("val"), torch.Tensor)
        ranks = self._homes[target] if tensor and target is not None else self.everybody
        for rank in ranks:
            self._want(value, rank)
        return ranks

    def _exchanges(self) -> dict[int, list[Transfer]]:
        targets: defaultdict[fx.Node, set[int]] = defaultdict(set)
        for value, rank in self._wanted:
            targets[value].add(rank)
        found: defaultdict[int, list[Transfer]] = defaultdict(list)
        for value, ranks in targets.items():
            fake = value.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                raise NotPipelined(
                    f"The update reads {value.name} of another stage, which is no tensor.",
                    where=provenance(value).line,
                )
            source = min(self._homes[value])
            meta = TensorMeta.of(fake)
            segment = self._levels[value]
            found[segment].append(Transfer(value.name, meta, source, frozenset(ranks)))
        return dict(found)

    def _delayed(self) -> dict[fx.Node, int]:
        """The segment of each node: the last, unless an exchange needs it before."""
        latest = {
            one.name: segment for segment, transfers in self.exchanges.items() for one in transfers
        }
        found: dict[fx.Node, int] = {}
        for node in reversed(list(self._levels)):
            readers = [found[user] for user in node.users if user in found]
            own = [latest[node.name]] if node.name in latest else []
            found[node] = min([*readers, *own, self.count - 1])
        for node in self._levels:  # a list is taken apart where it is made
            if node.target is operator.getitem:
                found[node] = found[node.all_input_nodes[0]]
        return {node: found[node] for node in self._levels}

    def _check_reads(self) -> None:
        """Refuse a state that is read in a later segment than the one that writes it."""
        for state, value in self._update.states().items():
            written = self._segments[value] if isinstance(value, fx.Node) else 0
            late = next((u for u in state.users if self._segments.get(u, 0) > written), None)
            if late is not None and value is not state:
                raise NotPipelined(
                    f"The update reads {state.name} after a rank of the pipeline has written it.",
                    where=provenance(late).line,
                )

    # --- programs ---------------------------------------------------------------------------------

    def segments_of(self, rank: int) -> list[Segment | None]:
        """The segments of the rank at a position; None where it only waits for others."""
        results = self._results_of(rank)
        sent = {one.name for many in self.exchanges.values() for one in many if one.source == rank}
        calls = [node for node in self._update.nodes if node.op == "call_function"]
        needed = {value for _, value in results if isinstance(value, fx.Node)}
        needed.update(node for node in self._levels if node.name in sent)
        for node in reversed(calls):
            if node in needed and rank in self._homes[node]:
                needed.update(node.all_input_nodes)
        own = [node for node in calls if node in needed and rank in self._homes[node]]
        readers: defaultdict[fx.Node, int] = defaultdict(int)
        for node in own:
            for one in node.all_input_nodes:
                readers[one] = max(readers[one], self._segments[node])
        for segment, transfers in self.exchanges.items():
            for node in self._levels:
                if any(one.name == node.name and one.source == rank for one in transfers):
                    readers[node] = max(readers[node], segment + 1)
        return [
            self._segment(rank, segment, own, results, readers) for segment in range(self.count)
        ]

    def _results_of(self, rank: int) -> list[tuple[OutputSpec, object]]:
        return [
            (out, value)
            for out, value in self._update.returns()
            if rank in self.returned[out.target]
        ]

    def _with_numbers(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Nodes with the Python numbers of earlier segments that they read, computed again."""
        found = set(nodes)
        pending = list(nodes)
        while pending:
            for one in pending.pop().all_input_nodes:
                number = not isinstance(one.meta.get("val"), (torch.Tensor, list, tuple))
                if number and one.op == "call_function" and one not in found:
                    found.add(one)
                    pending.append(one)
        return [node for node in self._levels if node in found]

    def _segment(
        self,
        rank: int,
        segment: int,
        own: Sequence[fx.Node],
        results: Iterable[tuple[OutputSpec, object]],
        readers: Mapping[fx.Node, int],
    ) -> Segment | None:
        nodes = self._with_numbers([node for node in own if self._segments[node] == segment])
        returned = list(results) if segment == self.count - 1 else []
        if not nodes and not returned:
            return None
        inside = set(nodes)
        asked = {one for node in nodes for one in node.all_input_nodes}
        asked.update(value for _, value in returned if isinstance(value, fx.Node))
        given = {
            node: Given(node.name)
            for node in self._update.nodes
            if node in asked - inside
            and (node.op == "call_function" or rank not in self._homes[node])
        }
        gives = [
            node
            for node in nodes
            if readers[node] > segment and isinstance(node.meta.get("val"), torch.Tensor)
        ]
        read = [*gives, *(value for _, value in returned)]
        part = Extract(self._update, nodes, given, read)
        copies = part.copies
        outs = [(out, copies[v] if isinstance(v, fx.Node) else v) for out, v in returned]
        outs += [(OutputSpec(OutputKind.GRADIENT, node.name), copies[node]) for node in gives]
        program = part.finished(outs)  # type: ignore[arg-type]  # what is no node is a constant
        last = {
            spec.fqn
            for spec, node in self._update.inputs()
            if spec.role is Role.ACCUMULATOR and readers[node] <= segment
        }
        specs = tuple(
            replace(spec, role=Role.INPUT)
            if spec.role is Role.ACCUMULATOR and spec.fqn not in last
            else spec
            for spec in program.signature.inputs
        )
        program.signature = replace(program.signature, inputs=specs)
        return Segment(
            program, tuple(part.states), tuple(part.takes), tuple(node.name for node in gives)
        )
