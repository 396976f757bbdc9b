"""A part of a program as a program of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import fx

from .._torch import OpOverload, graph_module
from ..ir.program import (
    InputSpec,
    OutputSpec,
    Program,
    Provenance,
    Role,
    TensorMeta,
    provenance,
)
from ..ir.values import evaluate, mode_of, neutral, own_like, with_values

Result = tuple[OutputSpec, fx.node.Argument]


class Given(NamedTuple):
    """A value that a part takes from outside, by the name under which it is handed in."""

    name: str
    role: Role = Role.INPUT


class Extract:
    """Builds one part.

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
        """Its inputs and constants."""
        return [node for node in self._graph.nodes if node.op in ("placeholder", "get_attr")]

    def _take(self, like: fx.Node, given: Given) -> fx.Node:
        """A further input that looks like the value of ``like``."""
        node = self._graph.placeholder(f"taken_{len(self.takes)}")
        own = own_like(mode_of(self._program), like.meta["val"])
        node.meta.update(val=own, provenance=provenance(like))
        self.takes.append(given.name)
        meta = TensorMeta.of(own)
        self._specs.append(InputSpec(node.name, given.role, given.name, meta))
        return node

    def call(self, op: OpOverload, args: Sequence[fx.Node], origin: Provenance) -> fx.Node:
        """A further op, over nodes of the part."""
        node = self._graph.call_function(op, tuple(args))
        with neutral():
            fake = evaluate(mode_of(self._program), op, with_values(tuple(args)), {})
        node.meta.update(val=fake, provenance=origin)
        return node

    def finished(self, results: Sequence[Result]) -> Program:
        """The program; ``results`` are nodes of the part, or constants."""
        self._graph.output(tuple(value for _, value in results))
        signature = replace(
            self._program.signature,
            inputs=tuple(self._specs),
            outputs=tuple(out for out, _ in results),
            micro_batches=1,
        )
        return Program(graph_module(self._program.gm, self._graph), signature)
