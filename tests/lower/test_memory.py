"""Orders, lifetimes, slots and the arena: derived again by running, and bitwise."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import fx

from tests import support
from tests.lower.test_reinplace import assert_same
from tests.passes.test_random_programs import Line, contents
from torchgraph.ir.program import Phase, Program, Provenance
from torchgraph.lower import Target, lower
from torchgraph.lower.inplace.reinplace import reinplace
from torchgraph.lower.lifetimes import Allocation, Lifetimes, peak
from torchgraph.lower.memory import arena, planning, slots
from torchgraph.lower.memory.order import orders
from torchgraph.lower.memory.planning import plan
from torchgraph.lower.memory.workspace import workspaces
from torchgraph.options.memory import STRAIGHTEN_MODES
from torchgraph.options.options import Options
from torchgraph.passes import pipeline, run

aten = torch.ops.aten
ALL = Options(straighten="MemoryFirst", compress_memory=True, best_memory_allocation=True)


def forced() -> Any:
    """Patches under which small values too lie in an arena, whatever it costs."""
    lay_out = functools.partial(_lay_out_anyhow, arena.lay_out)
    return mock.patch.multiple(arena, _LEAST_BYTES=0, _SLACK=1e6), mock.patch.object(
        planning, "lay_out", lay_out
    )


def _lay_out_anyhow(lay_out: Any, program: Program, taken: Any, **options: Any) -> Any:
    return lay_out(program, taken, **{**options, "limit": 1 << 40})


# --- lifetimes, by running ------------------------------------------------------------------------


class Watch(fx.Interpreter):
    """Runs a program and keeps every value, so that no two of them share memory by chance."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.gm, garbage_collect_values=False)
        self.names: dict[int, list[tuple[fx.Node, int]]] = {}
        """Storage -> the (node, result) that lie in it, in order."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        for index, item in enumerate(value if isinstance(value, (tuple, list)) else (value,)):
            if isinstance(item, torch.Tensor):
                self.names.setdefault(item.untyped_storage().data_ptr(), []).append((n, index))
        return value


def spans(program: Program, *examples: Any) -> dict[tuple[fx.Node, int], tuple[int, int]]:
    """(first node, last reader) of each memory that a run allocates, by who allocates it."""
    watch = Watch(program)
    live = [value.clone() if isinstance(value, torch.Tensor) else value for value in examples]
    with torch.no_grad():
        watch.run(*live)
    place = {node: i for i, node in enumerate(program.nodes)}
    found = {}
    for owners in watch.names.values():
        first = owners[0]
        if first[0].op == "call_function":
            last = max(place[reader] for node, _ in owners for reader in (node, *node.users))
            found[first] = (place[first[0]], last)
    return found


MAKERS: dict[str, Any] = {
    "exp": aten.exp.default,
    "tanh": aten.tanh.default,
    "softmax": lambda x: aten._softmax.default(x, 1, False),
    "product": lambda x: aten.mm.default(x, aten.t.default(x)),
    "pair": lambda x: aten.cat.default([x, x], 1),
    "rows": lambda x: aten.slice.Tensor(x, 1, 0, 2),
    "flat copy": lambda x: aten.clone.default(
        aten.t.default(x), memory_format=torch.contiguous_format
    ),
    "turned": aten.t.default,
    "largest": lambda x: aten.max.dim(x, 1, True)[0],
    "half": lambda x: aten._to_copy.default(
        aten._to_copy.default(x, dtype=torch.float16), dtype=torch.float32
    ),
    "slope": lambda x: aten.gelu_backward.default(aten.exp.default(x), x),
    "dropped": lambda x: aten.native_dropout.default(x, 0.5, True)[0],
}
steps = st.lists(
    st.tuples(st.sampled_from([*MAKERS, "add", "mul"]), st.integers(0, 40), st.integers(0, 40)),
    min_size=4,
    max_size=16,
)


def many_lives(code: Sequence[Line], *inputs: Any) -> Sequence[Any]:
    """Values that are read again long after they were made; what is returned reads them all."""
    pool = list(inputs)
    for name, first, second in code:
        x = pool[first % len(pool)]
        if name in MAKERS:
            pool.append(MAKERS[name](x) if max(x.shape) < 64 else aten.tanh.default(x))
            continue
        y = pool[second % len(pool)]
        y = y if y.shape == x.shape else aten.sum.default(y)
        pool.append((aten.add if name == "add" else aten.mul).Tensor(x, y))
    total = aten.sum.default(inputs[0])
    for value in pool:
        total = aten.add.Tensor(total, aten.sum.default(value))
    return [aten.neg.default(pool[-1]), total, aten.add.Tensor(inputs[0], total)]


@settings(max_examples=40, deadline=None, database=None)
@given(code=steps, strided=st.booleans(), compress=st.booleans())
def test_no_two_live_values_overlap_in_the_arena(
    code: list[Line], strided: bool, compress: bool
) -> None:
    # Finite, so that a wrong number anywhere shows in the total.
    examples = tuple(contents(turned).nan_to_num(0.5, 2.0) for turned in (strided, not strided))

    def step(weight: Any, x: Any) -> Sequence[Any]:
        return many_lives(code, weight, x)

    program = support.build(step, *examples, updates=("weight",))
    program = run(program, pipeline(Options()), support.STRICT)
    small, anyhow = forced()
    with small, anyhow:
        options = Options(
            straighten="MemoryFirst", compress_memory=compress, best_memory_allocation=not compress
        )
        executable = assert_same(program, *examples, options=options)
    lowered, block = executable.program, executable.memory.arena
    lived = spans(lowered, *examples)
    end = len(list(lowered.nodes)) - 1
    taken = []
    for node, offsets in block.offsets.items():
        for index, (value, offset) in enumerate(zip(arena.results(node), offsets, strict=True)):
            born, last = lived[node, index]
            assert last < end, f"{node} is returned and lies in the arena"
            size = value.untyped_storage().nbytes()
            assert 0 <= offset <= block.nbytes - size
            taken.append((born, last, offset, offset + size))
    for one, other in itertools.combinations(taken, 2):
        together = one[0] <= other[1] and other[0] <= one[1]
        apart = one[3] <= other[2] or other[3] <= one[2]
        assert apart or not together, (one, other)


def test_lifetimes_know_views_in_place_ops_and_items() -> None:
    def step(x: Any) -> Sequence[Any]:
        hot = aten.exp.default(x)
        flat = aten.view.default(hot, [12])
        grown = aten.mul.Tensor(flat, 2.0)  # becomes mul_: flat is read no more
        value, index = aten.max.dim(grown, 0)
        return [aten.add.Tensor(value, 1.0), index]

    program = reinplace(support.build(step, torch.randn(3, 4)))
    assert support.targets(program)[:3] == ["exp", "view", "mul_.Tensor"]
    found = Lifetimes(program)
    sizes = {(value.node.name, value.result): value.nbytes for value in found.values}
    assert sizes == {("exp", 0): 48, ("max_1", 0): 4, ("max_1", 1): 8}
    hot = next(value for value in found.values if value.node.name == "exp")
    assert found.nodes[hot.dies].name == "max_1"
    assert [value.returned for value in found.values] == [False, True, True]
    assert peak(found) == 48 + 4 + 8


# --- slots ----------------------------------------------------------------------------------------

lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 3000)), min_size=1, max_size=30
)


def values(drawn: Sequence[tuple[int, int, int]]) -> list[Allocation]:
    graph = fx.Graph()
    return [
        Allocation(graph.placeholder(f"v{i}"), 0, size, born, born + length, False)
        for i, (born, length, size) in enumerate(drawn)
    ]


def assert_apart(layout: slots.OffsetAssignment) -> None:
    for (one, at), (other, there) in itertools.combinations(layout.offsets.items(), 2):
        if one.meets(other):
            assert at + one.nbytes <= there or there + other.nbytes <= at
    assert all(at % slots.ALIGNMENT == 0 for at in layout.offsets.values())
    assert all(at + v.nbytes <= layout.nbytes for v, at in layout.offsets.items())


@settings(max_examples=150, deadline=None, database=None)
@given(drawn=lives, limit=st.integers(0, 20000))
def test_every_layout_keeps_live_values_apart(
    drawn: list[tuple[int, int, int]], limit: int
) -> None:
    given_values = values(drawn)
    bound = slots.least(given_values, 40)
    greedy = slots.place(given_values, "mem_size_first")
    best = slots.best(given_values)
    better = slots.improve(best, bound)
    for layout in (greedy, best, better):
        assert_apart(layout)
        assert set(layout.offsets) == set(given_values)
        assert layout.nbytes >= bound
    assert better.nbytes <= best.nbytes <= greedy.nbytes
    small = slots.place(given_values, "time_line", compact=True, limit=limit)
    assert_apart(small)
    assert small.nbytes <= limit


# --- orders ---------------------------------------------------------------------------------------


def training() -> tuple[Program, list[torch.Tensor]]:
    """Matrix products, their gradients, then an update of each weight."""

    def step(x: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Sequence[Any]:
        weights = (w0, w1, w2, w3)
        kept = [x]
        for weight in weights:
            kept.append(aten.tanh.default(aten.mm.default(kept[-1], weight)))
        gradient = kept[-1]
        gradients = []
        for weight, source in zip(reversed(weights), reversed(kept[:-1]), strict=True):
            gradients.append(aten.mm.default(aten.t.default(source), gradient))
            gradient = aten.mm.default(gradient, aten.t.default(weight))
        new = [
            aten.sub.Tensor(weight, aten.mul.Tensor(grad, 0.1))
            for weight, grad in zip(weights, reversed(gradients), strict=True)
        ]
        return [aten.sum.default(kept[-1]), *new]

    examples = [torch.randn(8, 64), *(torch.randn(64, 64) / 64 for _ in range(4))]
    program = support.build(step, *examples, updates=("w0", "w1", "w2", "w3"))
    calls = [node for node in program.nodes if node.op == "call_function"]
    for number, node in enumerate(calls):
        late = Phase.UPDATE if number >= len(calls) - 9 else Phase.BACKWARD
        where = node.meta["provenance"]
        phase = Phase.FORWARD if number < 8 else late
        node.meta["provenance"] = Provenance(where.module, phase, where.frames)
    return program, examples


@pytest.mark.parametrize("mode", STRAIGHTEN_MODES)
def test_every_mode_computes_the_same(mode: str) -> None:
    program, examples = training()
    executable = assert_same(program, *examples, options=Options(straighten=mode))
    assert executable.memory.mode == (mode if mode != "Disable" else "Disable")


def test_memory_first_lets_gradients_die_early() -> None:
    program, examples = training()
    plain = lower(program, "plain").runs
    early = assert_same(program, *examples, options=Options(straighten="MemoryFirst"))
    peaks = [peak(Lifetimes(one.program)) for one in (plain, early)]
    assert peaks[1] < 0.7 * peaks[0]
    assert early.memory.order != "the program's own"
    # Written in place as before: no update waits in a copy for the end.
    assert "copy_" not in support.targets(early.program)


def test_a_failing_forward_still_finds_nothing_written() -> None:
    program, _ = training()
    early = lower(program, "early", Target(Options(straighten="MemoryFirst"))).runs
    lines_of = [i for i, n in enumerate(early.lines, 1) if n is not None and n.name == "sum_1"]
    assert max(lines_of) < early.first_write


@pytest.mark.parametrize("mode", ["SpeedFirst", "OverlapCpuGpu"])
def test_a_mode_that_cannot_matter_says_so(mode: str) -> None:
    program, _ = training()
    assert "one device" in orders(program, mode).note
    assert "one device" in plan(program, Options(straighten=mode)).memory.note
    for other in ("Disable", "MemoryFirst", "DelayShortGpu"):
        assert orders(program, other).note == ""


@pytest.mark.parametrize("mode", ["SpeedFirst", "OverlapCpuGpu"])
def test_with_two_devices_it_matters(mode: str) -> None:
    def step(x: Any) -> Sequence[Any]:
        here = aten.exp.default(aten.sin.default(x))
        there = aten.exp.default(aten.exp.default(aten._to_copy.default(x, device="meta")))
        return [here, there]

    program = support.build(step, torch.randn(3))
    assert support.targets(program)[:2] == ["sin", "exp"]
    offer = orders(program, mode)
    ordered = next(offer.orders).program
    assert offer.for_speed
    assert offer.note == ""
    assert support.targets(ordered)[0] == "_to_copy"  # what the other device waits for


def test_random_draws_keep_their_order() -> None:
    def step(x: Any) -> Sequence[Any]:
        big = aten.native_dropout.default(x, 0.5, True)[0]
        small = aten.native_dropout.default(aten.slice.Tensor(x, 0, 0, 1), 0.5, True)[0]
        return [aten.add.Tensor(aten.sum.default(big), aten.sum.default(small))]

    examples = (torch.randn(64, 64),)
    program = support.build(step, *examples)
    for mode in STRAIGHTEN_MODES:
        assert_same(program, *examples, options=Options(straighten=mode, compress_memory=True))


# --- what is kept, what is written over -----------------------------------------------------------


def test_an_op_writes_over_the_argument_that_it_reads_last() -> None:
    def step(x: Any, gradient: Any) -> Sequence[Any]:
        hot = aten.gelu.default(x)
        cold = aten.mul.Tensor(gradient, 2.0)
        both = aten.mul.Tensor(hot, cold)  # cold dies here, and is not the first argument
        return [aten.sum.default(aten.gelu_backward.default(both, hot)), aten.sum.default(hot)]

    examples = (torch.randn(64, 64), torch.randn(64, 64))
    program = support.build(step, *examples)
    lowered = reinplace(program, over_arguments=True)
    assert support.targets(lowered)[2:4] == ["mul.out", "gelu_backward.grad_input"]
    assert peak(Lifetimes(lowered)) == 2 * 64 * 64 * 4 + 4
    assert_same(program, *examples, options=Options(compress_memory=True))
    assert not [t for t in support.targets(reinplace(program)) if "out" in t or "grad_input" in t]


def test_an_input_is_not_written_over() -> None:
    def step(x: Any, gradient: Any) -> Sequence[Any]:
        return [aten.gelu_backward.default(gradient, x)]

    examples = (torch.randn(64, 64), torch.randn(64, 64))
    program = support.build(step, *examples)
    assert_same(program, *examples, options=Options(compress_memory=True))


def test_the_gradient_of_a_clamp_reads_its_result() -> None:
    def step(x: Any) -> Sequence[Any]:
        clamped = aten.hardtanh.default(aten.mul.Tensor(x, 3.0), 0.0, 6.0)
        twice = aten.mul.Tensor(clamped, clamped)
        return [
            aten.sum.default(twice),
            aten.hardtanh_backward.default(twice, aten.mul.Tensor(x, 3.0), 0.0, 6.0),
        ]

    edges = torch.tensor([-1.0, -0.0, 0.0, 2.0, 2.0000002, 1.9999999, torch.nan, torch.inf])
    examples = (torch.cat([edges, torch.randn(1016)]),)
    program = run(support.build(step, *examples), pipeline(Options()), support.STRICT)
    executable = assert_same(program, *examples, options=Options(compress_memory=True))
    plain = lower(program, "plain").runs
    assert peak(Lifetimes(executable.program)) < peak(Lifetimes(plain.program))


# --- workspaces -----------------------------------------------------------------------------------


def test_workspaces_are_what_the_profiler_sees_besides_results() -> None:
    def step(x: Any, weight: Any) -> Sequence[Any]:
        found = aten.convolution.default(x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return [aten.sum.default(aten.exp.default(found))]

    examples = (torch.randn(8, 16, 16, 16), torch.randn(16, 16, 3, 3))
    lowered = reinplace(support.build(step, *examples))
    found = {str(node.target): count for node, count in workspaces(lowered).items()}
    assert set(found) <= {"aten.convolution.default", "aten.sum.default"}
    assert all(count > 0 for count in found.values())
