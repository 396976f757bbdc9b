"""A step over micro-batches as one program: each of them in turn, then the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .._torch import graph_module
from ..ir.each import expanded
from ..ir.program import OutputKind, Program, provenance
from ..ir.values import mode_of, neutral, valued
from ..lower.split import split

aten = torch.ops.aten


def unrolled(program: Program) -> Program:
    """``program``, of which forward and backward stand once for each micro-batch.

    Raises:
        NotSupported: as `split`.
    """
    count = program.signature.micro_batches
    return program if count == 1 else _Unrolling(expanded(program), count).run()


class _Unrolling:
    def __init__(self, program: Program, count: int) -> None:
        self._program, self._count = program, count
        self._graph = fx.Graph()
        self._mode = mode_of(program)
        self._root = program.gm
        self._values: dict[str, Any] = {}
        """By name, the value of each state and gradient as things stand, and each argument."""
        self._batches: dict[str, list[fx.Node]] = {}
        """By name, the micro-batches of each argument that is split."""

    def run(self) -> Program:
        parts = split(self._program)
        for spec, node in self._program.inputs():
            made = self._values[spec.fqn] = self._graph.node_copy(node)
            if spec.split:
                self._whole(made)
        for spec in self._program.signature.inputs:
            if spec.split:
                self._batches[spec.fqn] = self._chunks(self._values[spec.fqn])
        returned: dict[str, list[Any]] = {}
        for number in range(self._count):
            part = parts.following if number else parts.first
            for out, value in self._inlined(part, number):
                if out.kind is OutputKind.USER:
                    returned.setdefault(out.target, []).append(value)
                else:
                    self._values[out.target] = value
        results = {target: self._packed(values) for target, values in returned.items()}
        ends = dict(self._values)
        for out, value in self._inlined(parts.update, None):
            (results if out.kind is OutputKind.USER else ends)[out.target] = value
        outputs = [
            results[out.target] if out.kind is OutputKind.USER else ends[out.target]
            for out in self._program.signature.outputs
        ]
        self._graph.output(tuple(outputs))
        signature = replace(self._program.signature, micro_batches=1)
        return Program(graph_module(self._root, self._graph), signature)

    def _inlined(self, part: Program, number: int | None) -> Sequence[tuple[Any, Any]]:
        """The outputs of a part whose nodes are copied into the graph."""
        copies: dict[fx.Node, Any] = {}
        for spec, node in part.inputs():
            chunks = None if number is None else self._batches.get(spec.fqn)
            copies[node] = self._values[spec.fqn] if chunks is None else chunks[number or 0]
        for node in part.nodes:
            if node.op in ("get_attr", "call_function"):
                copies[node] = self._graph.node_copy(node, copies.__getitem__)
        return [
            (out, copies[value] if isinstance(value, fx.Node) else value)
            for out, value in part.returns()
        ]

    def _whole(self, node: fx.Node) -> None:
        """An argument, recorded as a micro-batch, is the whole batch."""
        like = node.meta["val"]
        shape = (like.shape[0] * self._count, *like.shape[1:])
        with neutral(), self._mode:
            node.meta["val"] = like.new_empty(shape)

    def _chunks(self, batch: fx.Node) -> list[fx.Node]:
        rows = batch.meta["val"].shape[0] // self._count
        return [
            self._call(aten.slice.Tensor, batch, 0, i * rows, (i + 1) * rows)
            for i in range(self._count)
        ]

    def _packed(self, values: list[Any]) -> Any:
        if not isinstance(values[0], fx.Node):
            return values[-1]
        op = aten.stack.default if values[0].meta["val"].ndim == 0 else aten.cat.default
        return self._call(op, values, 0)

    def _call(self, target: Any, *args: Any) -> fx.Node:
        made = valued(self._mode, self._graph.call_function(target, args))
        made.meta["provenance"] = provenance(next(iter(made.all_input_nodes)))
        return made
