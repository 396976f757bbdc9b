"""Extraction of a part of a program into a program of its own, also of parameter gathers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import fx

from .._torch import OpOverload, graph_module
from ..ir.aliasing import refresh_views
from ..ir.program import (
    InputSpec,
    OutputKind,
    OutputSpec,
    Program,
    Provenance,
    Role,
    TensorMeta,
    provenance,
)
from ..ir.values import mode_of, own_like, valued
from ..lower.split import Parts

Result = tuple[OutputSpec, fx.node.Argument]


class Given(NamedTuple):
    """A value that an extracted program takes as an input, by the name of that input."""

    name: str
    role: Role = Role.INPUT


class Extract:
    """Builder of a program from some nodes of another one.

    Args:
        program: the whole step.
        nodes: what runs in the part, in order.
        given: value of the program -> what the part takes for it.
        read: values that the part returns besides, of which some may be inputs of the step.
        more: further inputs, each like a value of the program.
    """

    def __init__(
        self,
        program: Program,
        nodes: Sequence[fx.Node],
        given: Mapping[fx.Node, Given],
        read: Sequence[object] = (),
        more: Sequence[tuple[fx.Node, Given]] = (),
    ) -> None:
        self._program = program
        self._graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        """Node of the whole program -> the part's own."""
        self._specs: list[InputSpec] = []
        inside = set(nodes)
        asked = {one for node in nodes for one in node.all_input_nodes}
        asked.update(value for value in read if isinstance(value, fx.Node))
        asked -= inside
        self.states: list[int] = []
        """Which inputs of the step the part takes."""
        for position, (spec, node) in enumerate(program.inputs()):
            if node in asked and node not in given:
                self.states.append(position)
                self._specs.append(replace(spec, split=False))
                self.copies[node] = self._graph.node_copy(node)
        self.takes: list[str] = []
        """What it takes besides, after these."""
        for node, one in given.items():
            if node in asked:
                self.copies[node] = self._take(node, one)
        self.more = [self._take(like, one) for like, one in more]
        """The further inputs, which are taken last."""
        for node in program.nodes:
            if node in inside or (node.op == "get_attr" and node in asked):
                self.copies[node] = self._graph.node_copy(node, self.copies.__getitem__)

    @property
    def inputs(self) -> list[fx.Node]:
        """The inputs and constants of the program."""
        return [node for node in self._graph.nodes if node.op in ("placeholder", "get_attr")]

    def _take(self, like: fx.Node, given: Given) -> fx.Node:
        """Add an input with the metadata of ``like``."""
        node = self._graph.placeholder(f"taken_{len(self.takes)}")
        own = own_like(mode_of(self._program), like.meta["val"])
        node.meta.update(val=own, provenance=provenance(like))
        self.takes.append(given.name)
        meta = TensorMeta.of(own)
        self._specs.append(InputSpec(node.name, given.role, given.name, meta))
        return node

    def call(self, op: OpOverload, args: Sequence[fx.Node], origin: Provenance) -> fx.Node:
        """Add an op over nodes of the new program."""
        node = valued(mode_of(self._program), self._graph.call_function(op, tuple(args)))
        node.meta["provenance"] = origin
        return node

    def finished(self, results: Sequence[Result]) -> Program:
        """The finished program; ``results`` are its nodes, or constants."""
        self._graph.output(tuple(value for _, value in results))
        signature = replace(
            self._program.signature,
            inputs=tuple(self._specs),
            outputs=tuple(out for out, _ in results),
            micro_batches=1,
        )
        return Program(graph_module(self._program.gm, self._graph), signature)


# --- what gathers parameters: before the micro-batches, each rank for its stages ------------------


@dataclass(frozen=True)
class GatherProgram:
    """A program that all-gathers some of the sharded parameters."""

    program: Program
    states: tuple[int, ...]
    """Which inputs of the step it takes."""
    gives: tuple[int, ...]
    """Which further inputs of the stages it gives, by their positions behind the step's own."""


class Gathers:
    """A step whose stages take gathered parameters as further inputs.

    Args:
        whole: gathers for itself.
    """

    def __init__(self, whole: Program) -> None:
        self._whole = whole
        self._found = Parts(whole).gathered
        self._values: Sequence[fx.Node] = self._found.values
        self._first = len(whole.signature.inputs)
        self._sources = list(map(self._sources_of, self._values))
        self.program = self._without() if self._values else whole
        """The step without what gathers."""

    def sources(self, position: int) -> set[int]:
        """The inputs of the step from which an input of the stages is made."""
        return {position} if position < self._first else self._sources[position - self._first]

    def _sources_of(self, value: fx.Node) -> set[int]:
        read = {one for node in self._found.makes([value]) for one in node.all_input_nodes}
        return {i for i, node in enumerate(self._whole.placeholders) if node in read}

    def program_of(self, positions: Collection[int]) -> GatherProgram | None:
        """The program that gathers those of ``inputs`` that are sharded; None where none is."""
        gives = sorted(one for one in positions if one >= self._first)
        if not gives:
            return None
        wanted = [self._values[one - self._first] for one in gives]
        makes = self._found.makes(wanted)
        part = Extract(self._whole, [node for node in self._whole.nodes if node in makes], {})
        results = [
            (OutputSpec(OutputKind.GRADIENT, node.name), part.copies[node]) for node in wanted
        ]
        return GatherProgram(part.finished(results), tuple(part.states), tuple(gives))

    def _without(self) -> Program:
        found = self._whole.copy()
        graph = found.gm.graph
        own = {node.name: node for node in graph.nodes}
        specs: list[InputSpec] = []
        last = found.placeholders[-1]
        for value in self._values:
            with graph.inserting_after(last):
                last = graph.placeholder(f"gathered_{len(specs)}")
            own_value = own_like(mode_of(self._whole), value.meta["val"])
            last.meta.update(value.meta, val=own_value)
            own[value.name].replace_all_uses_with(last)
            meta = TensorMeta.of(last.meta["val"])
            specs.append(InputSpec(last.name, Role.PARAMETER, f"gathered.{value.name}", meta))
        unread = self._found.unread(self._values)
        for node in reversed(list(self._whole.nodes)):
            if node in unread:
                graph.erase_node(own[node.name])
        found.signature = replace(found.signature, inputs=(*found.signature.inputs, *specs))
        refresh_views(found)
        return found
