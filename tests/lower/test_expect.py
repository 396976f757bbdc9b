"""Lowered programs with predicates: nothing of the user's is written before the last has held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests import support
from tests.expecting import add_expect_shape
from tests.lower.test_memory import forced
from torchgraph import ops
from torchgraph.ir.program import Phase, Program, provenance
from torchgraph.library import ValueMoved
from torchgraph.lower import Executable, Target, lower
from torchgraph.lower.halves.scan import scan
from torchgraph.lower.memory.order import orders
from torchgraph.lower.regions.cut import cut
from torchgraph.options.memory import STRAIGHTEN_MODES
from torchgraph.options.options import Options

aten = torch.ops.aten
TRUE = torch.tensor(True)

PLAIN = Options()
MEMORY = [
    Options(straighten=mode, compress_memory=True, best_memory_allocation=True)
    for mode in STRAIGHTEN_MODES
]


def early(x, w, m):
    """A predicate, then updates."""
    ops.expect((x > 0).any(), TRUE)
    m = m * 0.9 + x
    return (x * w).sum(), w - m, m


def late(x, w, m):
    """Updates, then a predicate about a new state."""
    m = m * 0.9 + x
    w = w - m
    ops.expect((w < 9).any(), TRUE)
    return (x * w).sum(), w, m


def between(x, w, m):
    """One update before and one after."""
    m = m * 0.9 + x
    ops.expect((m > 0).any(), TRUE)
    return (m * w).sum(), w - m, m


def twice(x, w, m):
    """Predicates at both ends."""
    ops.expect((x > 0).any(), TRUE)
    w = w - x
    ops.expect((w < 9).any(), TRUE)
    m = m.mul(2).relu()
    return w * 1, w, m


STEPS = [early, late, between, twice]
HOLDS = (torch.full((300,), 1.0), torch.full((300,), 2.0), torch.full((300,), 3.0))
MOVES = (torch.full((300,), -99.0), torch.full((300,), 2.0), torch.full((300,), 3.0))


def program_of(step: Any) -> Program:
    return support.build(step, *HOLDS, updates=["w", "m"])


def copies(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in inputs]


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, left, right))


@pytest.mark.parametrize("options", [PLAIN, *MEMORY], ids=lambda o: o.straighten)
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_written_before(step, options):
    program = program_of(step)
    lowered = lower(program, "test", Target(options)).runs
    values = copies(HOLDS)
    results = lowered.function(values)
    want = program.gm(*copies(HOLDS))
    assert same([results[0], values[1], values[2]], want)
    values = copies(MOVES)
    with pytest.raises(ValueMoved) as caught:
        lowered.function(values)
    assert same(values, MOVES)
    assert lowered.expects
    assert lowered.moved(caught.value)
    assert not lowered.wrote(caught.value)
    node = lowered.node_at(caught.value)
    assert node is not None
    assert node.target is ops.expect
    assert lowered.line_of(node) is not None


def test_what_comes_after_the_last_is_still_written_in_place():
    counts = {}
    for step in STEPS:
        nodes = lower(program_of(step), "test").runs.program.nodes
        counts[step] = sum(node.target is aten.copy_.default for node in nodes)
    assert counts == {early: 0, between: 1, twice: 1, late: 2}


@pytest.mark.parametrize("mode", STRAIGHTEN_MODES)
def test_an_order_leaves_updates_behind_the_last(mode):
    program = program_of(early)
    for node in program.nodes:
        if node.target in (aten.sub.Tensor, aten.mul.Tensor) and "provenance" in node.meta:
            origin = provenance(node)
            node.meta["provenance"] = type(origin)(origin.module, Phase.UPDATE, origin.frames)
    for order in orders(program, mode).orders:
        nodes = list(order.program.nodes)
        place = next(i for i, node in enumerate(nodes) if node.target is ops.expect)
        states = set(order.program.placeholders[1:])
        assert all(nodes.index(user) > place for state in states for user in state.users)


# --- an op that fails on values of another variant ------------------------------------------------


def indexes(x, i, w):
    """An index that is in range only where the predicate behind it holds."""
    part = x[i]
    ops.expect((i < 3).all(), TRUE)
    return part * w, w + part.sum()


def test_another_ops_error_before_the_last_predicate_is_one():
    x, i, w = torch.ones(3), torch.tensor([2, 0]), torch.ones(2)
    program = support.build(indexes, x, i, w, updates=["w"])
    lowered = lower(program, "test").runs
    lowered.function([x, i, w])
    values = [x, torch.tensor([2, 7]), w.clone()]
    with pytest.raises(IndexError) as caught:
        lowered.function(values)
    assert lowered.moved(caught.value)
    assert same(values[2:], [w])


def fails_after(x, i, w):
    ops.expect((i < 30).all(), TRUE)
    return x[i] * w, w + 1


def test_an_error_after_the_last_predicate_is_an_error():
    x, i, w = torch.ones(3), torch.tensor([2, 0]), torch.ones(2)
    lowered = lower(support.build(fails_after, x, i, w, updates=["w"]), "test").runs
    with pytest.raises(IndexError) as caught:
        lowered.function([x, torch.tensor([2, 7]), w])
    assert not lowered.moved(caught.value)
    none = lower(support.build(lambda x, i: (x[i],), x, i), "test").runs
    with pytest.raises(IndexError) as caught:
        none.function([x, torch.tensor([2, 7])])
    assert not none.expects
    assert not none.moved(caught.value)


# --- sizes that depend on data --------------------------------------------------------------------


def sized(x, w):
    """Elementwise ops and a matmul on what a mask chooses, and an update by it."""
    chosen = x[x[:, 0] > 0]
    out = (chosen * 2 + 1).relu() @ w
    return out.exp(), w - out.mean()


def sized_program(rows=5):
    x = torch.full((8, 300), -1.0)
    x[:rows] = 1.0
    w = torch.full((300, 300), 0.001)
    program = support.build(sized, x, w, updates=["w"])
    (node,) = [node for node in program.nodes if node.target is aten.index.Tensor]
    add_expect_shape(program, node, rows, 300)
    other = x.clone()
    other[rows] = 1.0
    return program, x, other, w


@pytest.mark.parametrize("options", [PLAIN, *MEMORY], ids=lambda o: o.straighten)
def test_a_recorded_size(options):
    program, x, other, w = sized_program()
    small, anyhow = forced()
    with small, anyhow:
        lowered = lower(program, "test", Target(options)).runs
    want = program.gm(x, w)
    for _ in range(2):
        value = w.clone()
        (result,) = lowered.function([x, value])
        assert same([result, value], want)
        with pytest.raises(ValueMoved, match="expected the shape"):
            lowered.function([other, value])
        assert same([value], want[1:])
    laid_out = {node.target for node in lowered.memory.arena.offsets}
    assert aten.index.Tensor not in laid_out, "its out= form would change the size of the slot"
    assert laid_out or options is PLAIN


# --- regions --------------------------------------------------------------------------------------


def interpreted(program: Program) -> tuple[Executable, list[Any]]:
    calling, regions = cut(program, eager_draws=True)
    for region in regions:
        region.compiled(region.gm)
    return lower(calling, "test").runs, regions


@pytest.mark.parametrize("step", STEPS)
def test_regions_write_nothing_before_the_last(step):
    program = program_of(step)
    lowered, regions = interpreted(program)
    assert regions
    for region in regions:
        assert all(node.target is not ops.expect for node in region.gm.graph.nodes)
    values = copies(HOLDS)
    results = lowered.function(values)
    assert same([results[0], values[1], values[2]], program.gm(*copies(HOLDS)))
    values = copies(MOVES)
    with pytest.raises(ValueMoved) as caught:
        lowered.function(values)
    assert same(values, MOVES)
    assert lowered.moved(caught.value)
    assert not lowered.wrote(caught.value)


def test_a_region_behind_the_last_still_writes():
    program = program_of(early)
    for node in program.nodes:
        if node.target is aten.sub.Tensor:
            origin = provenance(node)
            node.meta["provenance"] = type(origin)(origin.module, Phase.UPDATE, origin.frames)
    _, regions = interpreted(program)
    assert any(region.effects.mutates for region in regions)


def test_regions_rely_on_recorded_sizes_only_behind_their_predicate():
    program, x, other, w = sized_program()
    lowered, regions = interpreted(program)
    targets = [[n.target for n in region.gm.graph.nodes] for region in regions]
    assert not any(aten.index.Tensor in found for found in targets)
    assert any(aten.mm.default in found for found in targets)
    value = w.clone()
    want = program.gm(x, w)
    assert same([*lowered.function([x, value]), value], want)
    with pytest.raises(ValueMoved, match="expected the shape"):
        lowered.function([other, value])
    assert same([value], want[1:])


# --- CUDA graphs ----------------------------------------------------------------------------------


def test_sizes_that_depend_on_data_are_not_replayed():
    program, *_ = sized_program()
    found = [one for one in scan(program, torch.device("cpu")) if "Python has read" in one.reason]
    lines = [provenance(node).line for node in program.nodes if node.target is ops.expect_shape]
    assert [one.line for one in found] == lines != []
