from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

import torchgraph as tg
from tests import support
from torchgraph.ir.program import Program, Role, Signature, TensorMeta
from torchgraph.passes import DelayVariables

aten = torch.ops.aten
X, WEIGHT, OTHER = torch.randn(2, 3), torch.randn(3, 3), torch.randn(3, 3)


def casts_first(x: Any, weight: Any, other: Any) -> Sequence[Any]:
    first = aten._to_copy.default(weight, dtype=torch.float64)
    second = aten._to_copy.default(aten.t.default(other), dtype=torch.float64)
    scaled = aten.mul.Tensor(second, 2.0)
    x = aten.mm.default(aten._to_copy.default(x, dtype=torch.float64), first)
    return (aten.mm.default(aten.relu.default(x), scaled),)


def casts_late(x: Any, weight: Any, other: Any) -> Sequence[Any]:
    y = aten.mm.default(x, aten.mul.Tensor(weight, 2.0))
    return (aten.mm.default(aten.relu.default(y), aten.mul.Tensor(other, 3.0)),)


def program(step: Any = casts_first, updates: Sequence[str] = ()) -> Program:
    """With ``weight`` and ``other`` as parameters also where nothing updates them."""
    built = support.build(step, X, WEIGHT, OTHER, updates=updates)
    inputs = tuple(
        spec if spec.fqn == "x" else replace(spec, role=Role.PARAMETER)
        for spec in built.signature.inputs
    )
    return Program(built.gm, Signature(inputs, built.signature.outputs))


def test_match() -> None:
    before = program()
    done, edits = support.apply(DelayVariables(), before)
    support.assert_golden("delay_variables", support.before_and_after(before, done))
    assert edits == 3


def test_no_match() -> None:
    support.assert_unchanged(DelayVariables(), program(casts_late))


def test_effects_kept() -> None:
    def step(x: Any, weight: Any, other: Any) -> Sequence[Any]:
        noise = aten.rand_like.default(weight)  # computed from a weight alone, and yet drawn
        noisy, doubled = aten.add.Tensor(weight, noise), aten.mul.Tensor(other, 2.0)
        x = aten.mm.default(aten.mul.Tensor(x, aten.rand_like.default(x)), doubled)
        return (aten.mm.default(x, noisy),)

    before = program(step)
    done, edits = support.apply(DelayVariables(), before)
    assert edits == 1  # doubled
    support.assert_parity(before, done, X, WEIGHT, OTHER)


def test_idempotent() -> None:
    done, _ = support.apply(DelayVariables(), program())
    support.assert_unchanged(DelayVariables(), done)


def test_parity() -> None:
    for step in (casts_first, casts_late):
        before = program(step)
        done, _ = support.apply(DelayVariables(), before)
        support.assert_parity(before, done, X, WEIGHT, OTHER)
        assert DelayVariables().exact(before)


def test_a_program_that_updates_something_stays() -> None:
    def step(x: Any, weight: Any, other: Any) -> Sequence[Any]:
        (y,) = casts_first(x, weight, other)
        return y, aten.add.Tensor(weight, 1.0)

    support.assert_unchanged(DelayVariables(), program(step, updates=("weight",)))


def test_nothing_lives_longer() -> None:
    """``doubled`` has an early reader: moving ``sine`` down would keep both until then."""

    def step(x: Any, weight: Any, other: Any) -> Sequence[Any]:
        doubled = aten.mul.Tensor(weight, 2.0)
        sine = aten.sin.default(doubled)
        x = aten.mm.default(x, doubled)
        return (aten.mm.default(aten.relu.default(x), sine),)

    support.assert_unchanged(DelayVariables(), program(step))


def live_bytes(program: Program) -> int:
    """The most bytes that results of calls take at once; re-derived here, views counted as none."""
    last = {used: node for node in program.nodes for used in node.all_input_nodes}
    alive: dict[Any, int] = {}
    most = 0
    for node in program.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and not node.target.is_view:
            alive[node] = TensorMeta.of(value).nbytes
        most = max(most, sum(alive.values()))
        alive = {held: size for held, size in alive.items() if last[held] is not node}
    return most


def in_double(model: nn.Module, x: Any) -> Any:
    """Every weight in double precision first, then the model."""
    weights = {name: value.double() for name, value in model.named_parameters()}
    return functional_call(model, weights, (x.double(),))


class Cast(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return in_double(self.model, x)


def test_a_graph_that_casts_all_its_weights_first() -> None:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))
    x = torch.randn(2, 32)
    graph, without = Cast(model), Cast(model)
    without.config.passes.disable("delay_variables")
    with torch.no_grad():
        expected = in_double(model, x)
        for _ in range(3):
            assert torch.equal(graph(x), expected)
            assert torch.equal(without(x), expected)
    moved, stays = (g._runner.programs.compiler.latest[0].program for g in (graph, without))
    assert live_bytes(stays) > 8 * 32 * 32 * 8
    assert live_bytes(moved) < 2 * 32 * 32 * 8
