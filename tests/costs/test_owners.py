"""Whose an op over lists of parameters is."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from tests.debug.tree_support import ProgramWriter, empty
from torchgraph.costs.owners import Owners, own_module
from torchgraph.ir import names
from torchgraph.ir.program import OutputKind, Phase, Program, Provenance, Role

aten = torch.ops.aten
UPDATE = Provenance("model.0", Phase.UPDATE)
WEIGHTS = (names.parameter("model.0", "weight"), names.parameter("model.1", "weight"))
SLOTS = tuple(names.slot(0, weight, "momentum") for weight in WEIGHTS)


def program(*, by: str) -> tuple[Program, dict[str, fx.Node]]:
    """Momentum over lists of a parameter of 1 element and one of 3. ``by``: what names the rows."""
    write = ProgramWriter()
    sizes = (1, 3)
    grads = [write.input(Role.INPUT, f"g{i}", empty(size)) for i, size in enumerate(sizes)]
    moments = [
        write.input(Role.SLOT if by == "inputs" else Role.FREE, fqn, empty(size))
        for fqn, size in zip(SLOTS, sizes, strict=True)
    ]
    values = [empty(size) for size in sizes]

    def over(op: Any, *lists: list[fx.Node]) -> tuple[fx.Node, list[fx.Node]]:
        made = write.op(op, tuple(map(list, lists)), values, UPDATE)
        took = [write.op(operator.getitem, (made, i), values[i], UPDATE) for i in (0, 1)]
        return made, took

    clipped, scaled = over(aten._foreach_neg.default, grads)
    added, new = over(aten._foreach_add.List, moments, scaled)
    targets = SLOTS if by == "outputs" else ("", "")
    kind = OutputKind.UPDATE if by == "outputs" else OutputKind.USER
    made = write.program(*((kind, to, value) for to, value in zip(targets, new, strict=True)))
    return made, {"clipped": clipped, "added": added, "first": scaled[0], "second": scaled[1]}


@pytest.mark.parametrize("by", ["inputs", "outputs"])
def test_rows_are_those_of_the_states(by):
    made, nodes = program(by=by)
    owners = Owners(made)
    for name in ("clipped", "added"):
        parts = [(part.module, part.size) for part in owners.parts(nodes[name])]
        assert parts == [("model.0", 0.25), ("model.1", 0.75)]
        assert owners.module(nodes[name]) == own_module(nodes[name]) == ""
    assert owners.module(nodes["first"]) == "model.0"
    assert owners.module(nodes["second"]) == "model.1"


def test_one_parameter_is_its_modules():
    write = ProgramWriter()
    slot = write.input(Role.SLOT, SLOTS[1], empty(3))
    made = write.op(aten._foreach_neg.default, ([slot],), [empty(3)], UPDATE)
    first = write.op(operator.getitem, (made, 0), empty(3), UPDATE)
    owners = Owners(write.program((OutputKind.UPDATE, SLOTS[1], first)))
    assert owners.module(made) == "model.1"


def test_a_number_that_all_rows_share_is_nobodys():
    write = ProgramWriter()
    slots = [write.input(Role.SLOT, fqn, empty(1)) for fqn in SLOTS]
    step = write.input(Role.FREE, "step", empty(1))
    values = [empty(1), empty(1)]
    made = write.op(aten._foreach_add.List, ([step, step], slots), values, UPDATE)
    again = write.op(aten._foreach_neg.default, ([step, step],), values, UPDATE)
    owners = Owners(write.program((OutputKind.USER, "", made), (OutputKind.USER, "", again)))
    assert [part.module for part in owners.parts(made)] == ["model.0", "model.1"]
    assert owners.module(again) == ""
