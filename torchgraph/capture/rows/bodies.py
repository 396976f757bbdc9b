"""The body of a kind: what is done to one of its rows, as a functional program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import torch

from ..._torch import known_values
from ...errors import GraphError
from ...ir import effects
from ...ir.names import key_of
from ...ir.program import OutputKind, OutputSpec, Program, Role
from ...ir.values import same_layout
from ...live.step import Leaf
from ...record.tape.number import stand_in
from ...record.tape.tape import OptimizerStep, Ref, Tape
from ..functional.functionalize import functionalize
from ..graph_of import graph_of
from .row_keys import Row


class Bodies:
    """The row bodies of one optimizer's step."""

    def __init__(self, tape: Tape, step: OptimizerStep, leaves: dict[int, Leaf]) -> None:
        self._tape = tape
        self._step = step
        self._leaves = leaves
        self._numbers: dict[int, object] = {}
        """Recorded numbers, by value."""

    def of(self, rows: Sequence[Row]) -> Program | None:
        """The body for these rows, from the largest; None where an op has no functional form."""
        return self._body(max(rows, key=lambda row: self._bytes(row.inputs)))

    def number(self, index: int) -> Any:
        """The value of a number in the recorded step."""
        if index in self._leaves:
            return self._leaves[index].value
        if not self._numbers:
            made = (entry for entry in self._tape.entries if entry.number is not None)
            self._numbers = {entry.outs: entry.number for entry in made}
        return self._numbers[index]

    def _bytes(self, inputs: Sequence[int]) -> int:
        layouts = [self._tape.layouts[index] for index in inputs]
        return sum(layout.nbytes for layout in layouts if layout is not None)

    def _body(self, row: Row) -> Program | None:
        leaves = self._inputs([*row.inputs, *row.shared], row.parameter)
        numbered = enumerate(row.kept)
        kept = [(OutputSpec(OutputKind.USER, str(n)), Ref(index)) for n, index in numbered]
        written = graph_of(Tape(self._tape.layouts, row.entries), leaves, kept)
        inputs, specs = [leaf for leaf, _ in leaves], [spec for spec, _ in kept]
        try:
            found = functionalize(written.gm, written.mode, inputs, specs)
        except GraphError:
            return None  # whoever sees the whole step says what is wrong
        assert found is not None
        program, _ = found
        for node in program.nodes:
            value = node.meta.get("val")
            if isinstance(value, (torch.SymFloat, torch.SymInt)):  # a trace has some of its own
                node.meta["val"] = stand_in(known_values(value))
        for node in reversed(list(program.nodes)):
            if node.op == "call_function" and not node.users and effects.of(node).pure:
                program.gm.graph.erase_node(node)
        return program if _keeps_layouts(program) else None

    def _inputs(self, values: Sequence[int], parameter: str) -> list[tuple[Leaf, int]]:
        """The stand-ins for the body's inputs, with unique names."""
        met: set[str] = set()
        leaves = []
        for index in values:
            plain = name = self._name(index, parameter)
            for number in count(2):
                if name not in met:
                    break
                name = f"{plain}_{number}"
            met.add(name)
            tensor = self._tape.layouts[index] is not None
            role, value = (Role.INPUT, torch.empty(0)) if tensor else (Role.SCALAR, None)
            if value is None:
                value = self.number(index)
            leaves.append((Leaf(name, role, {}, (), value), index))
        return leaves

    def _name(self, index: int, parameter: str) -> str:
        """The name of an input in the body: ``parameter``, ``gradient``, ``exp_avg``, ``lr``."""
        if self._step.gradients.get(parameter) == index:
            return "gradient"
        leaf = self._leaves.get(index)
        if leaf is None:
            return "number" if self._tape.layouts[index] is None else "tensor"
        if leaf.fqn == parameter:
            return "parameter"
        return ".".join(key_of(leaf.fqn)) or leaf.fqn


def _keeps_layouts(body: Program) -> bool:
    """True when the new value of each tensor is laid out as the tensor."""
    inputs = {node.name: node.meta["val"] for node in body.placeholders}
    names = {spec.fqn: spec.name for spec in body.signature.inputs}
    outputs = body.returns()
    updates = [(o, value) for o, value in outputs if o.kind is OutputKind.UPDATE]
    return all(same_layout(inputs[names[o.target]], value.meta["val"]) for o, value in updates)
