"""A step that meets another value than it was made for: it has done nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.expecting import add_expect, edited
from tests.lower.conftest import interpreted
from tests.lower.test_inductor import cache, shared
from torchgraph import ops
from torchgraph.ir import text
from torchgraph.ir.program import SKIPPED_BY, OutputKind, Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.library import ValueMoved
from torchgraph.lower.inductor import job
from torchgraph.testing import counters

pytestmark = pytest.mark.usefixtures("without_looks")

__all__ = ["cache", "edited", "interpreted", "shared"]

aten = torch.ops.aten
TRUE = torch.tensor(True)
SETTLED = 3
"""Calls of AdamW until a program has served one: two that are recorded, a replay."""
Edit = Callable[[Callable[[Program], Any]], None]


class Train(tg.Graph):
    """Buffers, draws, a loss, and a value that Python might read before or after all that."""

    def __init__(self, *, first: bool = True, scaler: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)
        )
        self.add_optimizer(optim.AdamW(self.model.parameters(), lr=0.1))
        self.first, self.scaler = first, scaler
        if scaler is not None:
            self.set_grad_scaler(scaler)

    def build(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = (x > 0).any() if self.first else None
        loss = self.model(x).sum()
        loss.backward()
        return loss, (x > 0).any() if seen is None else seen


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fake value is computed again after every pass."""
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "strict")


def expect_any(program: Program) -> None:
    add_expect(program, support.find(program, aten.any.default), TRUE)


def held(graph: Train) -> dict[str, Any]:
    """All that a step may change."""
    found = {name: value.clone() for name, value in graph.model.state_dict().items()}
    for number, slots in graph._runner.live.optimizers[0].state_dict()["state"].items():
        found.update((f"{number}.{name}", value.clone()) for name, value in slots.items())
    found["generator"] = torch.get_rng_state()
    if graph.scaler is not None:
        found["scaler"] = torch.tensor(list(graph.scaler.state_dict().values()))
    return found


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert list(left) == list(right)
    wrong = [name for name, value in left.items() if not support.same_bits(value, right[name])]
    assert wrong == []


GOOD = torch.linspace(-1, 1, 32).reshape(8, 4)


def replay(graph: Any, *args: Any) -> Any:
    """A step of the program that serves calls: a Graph would go on in eager where it raises."""
    call = graph._runner.live.inputs.bind(args, {})
    return graph._runner._replayed(graph._runner.programs.find(call), call)


def check(make: Callable[[], Train], bad: torch.Tensor, settled: int = SETTLED) -> Train:
    """A call that finds a value moved, between two steps, leaves no trace in them."""
    plain, graph = make(), make()
    state = torch.get_rng_state()
    want = [plain(GOOD)[0] for _ in range(settled + 1)]
    end = held(plain)
    torch.set_rng_state(state)
    with counters.expect(replays=1):
        got = [graph(GOOD)[0] for _ in range(settled)]
    before = held(graph)
    for _ in range(2):
        with pytest.raises(ValueMoved, match="expected True, found False") as caught:
            replay(graph, bad)
        assert_same(before, held(graph))
    trace = caught.tb
    while trace is not None:
        assert not trace.tb_frame.f_code.co_filename.startswith("<torchgraph"), "holds the batch"
        trace = trace.tb_next
    assert caught.value.__context__ is None
    assert caught.value.node is not None
    assert caught.value.node.target is ops.expect
    assert caught.value.line is not None
    assert "(x > 0).any()" in caught.value.line.text
    with counters.expect(replays=1):
        got.append(graph(GOOD)[0])
    assert all(map(torch.equal, want, got))
    assert_same(end, held(graph))
    return graph


def unplanned(config: Any) -> None:
    """Nothing."""


def planned(config: Any) -> None:
    config.enable_straighten_algorithm("MemoryFirst")
    config.enable_compress_memory()
    config.enable_choose_best_memory_allocation()


def half(config: Any) -> None:
    config.enable_amp(True, dtype=torch.bfloat16, policy="oneflow")


def checkpointed(config: Any) -> None:
    config.set_activation_checkpointing("matmuls")


def unfused(config: Any) -> None:
    config.allow_fuse_model_update_ops(False)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("configure", [unplanned, planned, half, checkpointed, unfused])
def test_on_aten(first: bool, configure: Callable[[Any], None], edited: Edit) -> None:
    def make() -> Train:
        graph = Train(first=first)
        graph.config.set_backend("aten")
        configure(graph.config)
        return graph

    edited(expect_any)
    graph = check(make, -GOOD.abs())
    targets = [node.target for node in graph.program.nodes]
    assert targets.count(ops.expect) == 1


@pytest.mark.parametrize("first", [True, False])
def test_in_regions(first: bool, edited: Edit, interpreted: Any) -> None:
    def make() -> Train:
        graph = Train(first=first)
        graph.config.set_backend("inductor")
        return graph

    edited(expect_any)
    check(make, -GOOD.abs())
    assert interpreted[-1].regions


@pytest.mark.slow
@pytest.mark.skipif(job.cpp_compiler() is None, reason="Inductor needs a C++ compiler")
def test_compiled_for_real(edited: Edit, cache: Any) -> None:
    def make() -> Train:
        graph = Train(first=False)
        graph.config.set_backend("inductor")
        return graph

    edited(expect_any)
    graph = check(make, -GOOD.abs())
    assert support.replay_of(graph).inductor_since == 0


@pytest.mark.parametrize("bad_part", [0, 1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_accumulation(first: bool, bad_part: int, edited: Edit) -> None:
    """Micro-batches before the one that fails have written the statistics: these come back."""

    def make() -> Train:
        graph = Train(first=first)
        graph.config.set_backend("aten")
        graph.config.set_gradient_accumulation_steps(4)
        return graph

    edited(expect_any)
    bad = GOOD.abs() + 0.1
    bad[2 * bad_part : 2 * bad_part + 2] *= -1
    # Each micro-batch of two rows has to hold a positive number.
    good = GOOD.abs() + 0.1
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr(f"{__name__}.GOOD", good)
        check(make, bad)


@pytest.mark.parametrize("first", [True, False])
def test_under_a_scaler(first: bool, edited: Edit) -> None:
    def make() -> Train:
        graph = Train(first=first, scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
        graph.config.set_backend("aten")
        return graph

    edited(expect_any)
    check(make, -GOOD.abs(), SETTLED + 1)  # its first step, which makes the slots, is one more


def expect_new_weights(program: Program) -> None:
    """A predicate about a state after the update, as a check behind the optimizer's step."""
    outputs = zip(program.signature.outputs, program.results, strict=True)
    updates = [(str(o.target), v) for o, v in outputs if o.kind is OutputKind.UPDATE]
    (new,) = [value for name, value in updates if name == "model.4.bias"]
    edit = Rewriter(program, "test")
    small = edit.call(aten.lt.Scalar, (new, 1e6), before=program.output, like=new)
    every = edit.call(aten.all.default, (small,), before=program.output, like=new)
    add_expect(program, every, TRUE)


def test_no_predicate_is_skipped_with_a_step(edited: Edit) -> None:
    edited(expect_new_weights)
    graph = Train(scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    graph.config.set_backend("aten")
    support.settle(graph, GOOD)
    bias = graph.model[4].bias
    before = bias.clone()
    overflow = GOOD.clone()
    overflow[0, 0] = torch.inf
    with counters.expect(replays=1):
        graph(overflow)  # the step is skipped, the bias stays small
    assert torch.equal(before, bias)
    assert graph.scaler.get_scale() == 2.0
    (lowered,) = support.replay_of(graph).executable.programs
    assert [SKIPPED_BY in n.meta for n in lowered.nodes if n.target is ops.expect] == [False]
    with torch.no_grad():
        bias.fill_(1e7)
    now = held(graph)
    with pytest.raises(ValueMoved):
        replay(graph, GOOD)
    assert_same(now, held(graph))


class Chosen(Train):
    """Rows by a mask."""

    def build(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.model[:3](x)[x[:, 0] > 0]
        loss = (chosen * 2).relu().exp().sum()
        loss.backward()
        return loss


@pytest.mark.parametrize("configure", [unplanned, planned, half, checkpointed, unfused, None])
def test_recorded_sizes(configure: Callable[[Any], None] | None, interpreted: Any) -> None:
    graph = Chosen()
    graph.config.set_backend("inductor" if configure is None else "aten")
    if configure is not None:
        configure(graph.config)
    rows = GOOD.clone()
    rows[:6, 0], rows[6:, 0] = 1, -1
    support.settle(graph, rows)
    more = rows.abs()
    before = held(graph)
    with pytest.raises(ValueMoved, match=r"expected the shape \[6, 8\], found \[8, 8\]"):
        replay(graph, more)
    assert_same(before, held(graph))
    with counters.expect(replays=2):
        graph(rows)
        support.settle(graph, more)  # a program for them, too


class Picks(tg.Graph):
    """An index that the predicate behind it would have stopped, or not."""

    def __init__(self, *, behind: bool) -> None:
        super().__init__()
        self.model = nn.Linear(3, 3)
        self.add_optimizer(optim.SGD(self.model.parameters(), lr=0.1))
        self.config.set_backend("aten")
        self.behind = behind

    def build(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        seen = None if self.behind else (i >= 0).any()
        loss = self.model(x)[i].sum()
        seen = (i >= 0).any() if seen is None else seen
        loss.backward()
        return loss, seen


def test_an_op_that_fails_first_is_a_moved_value(edited: Edit) -> None:
    edited(expect_any)
    graph = Picks(behind=True)
    support.settle(graph, torch.ones(3, 3), torch.tensor([0, 2]))
    with pytest.raises(ValueMoved, match="IndexError") as caught:
        replay(graph, torch.ones(3, 3), torch.tensor([0, 9]))
    assert caught.value.line is not None
    assert "[i]" in caught.value.line.text
    before = graph.model.weight.clone()
    with pytest.raises(IndexError):  # of the user's own line: the call runs in eager
        graph(torch.ones(3, 3), torch.tensor([0, 9]))
    assert torch.equal(graph.model.weight, before)
    with counters.expect(replays=1):
        graph(torch.ones(3, 3), torch.tensor([0, 2]))


def test_an_op_that_fails_behind_fails(edited: Edit) -> None:
    edited(expect_any)
    graph = Picks(behind=False)
    support.settle(graph, torch.ones(3, 3), torch.tensor([0, 2]))
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        graph(torch.ones(3, 3), torch.tensor([0, 9]))


def test_it_is_shown(edited: Edit) -> None:
    edited(expect_any)
    graph = Train()
    graph.config.set_backend("aten")
    graph(GOOD)
    report = graph.report()
    (shown,) = report.predicates
    assert shown.expected == "True"
    assert shown.line is not None
    assert "Values that Python read" in str(report)
    assert f"test_moved.py:{shown.line.lineno}" in str(report)
    rendered = text.render(graph.program).splitlines()
    (line,) = [one for one in rendered if "expect.default" in one]
    assert line.endswith(f"test_moved.py:{shown.line.lineno} (test), expected True")
    assert "torchgraph.expect" in repr(graph)
