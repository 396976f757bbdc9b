"""`graph.check()` of a step that communicates: one check of all ranks, and one verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import torchgraph as tg
from tests import support
from tests.distributed import spawn
from tests.support import confirm
from torchgraph.errors import GraphError, NotSupported
from torchgraph.inspect import check as checking
from torchgraph.inspect.check import Accuracy, Divergence
from torchgraph.ir.each import expanded
from torchgraph.ir.program import Program
from torchgraph.ir.rewriter import Rewriter
from torchgraph.passes import Pass

aten = torch.ops.aten
communication = torch.ops._c10d_functional


@dataclass(frozen=True)
class Swap(Pass):
    """Calls ``new`` in the place of the calls of ``old``, on some ranks."""

    name: ClassVar[str] = "swap"
    old: Any
    new: Any
    ranks: tuple[int, ...]
    arguments: Callable[[Any], tuple[Any, ...]] = tuple
    promises: bool = True

    def exact(self, program: Program) -> bool:
        return self.promises

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is self.old and dist.get_rank() in self.ranks:
                made = edit.call(self.new, self.arguments(node.args), before=node, like=node)
                edit.replace(node, made)


@dataclass(frozen=True)
class Largest(Pass):
    """Takes the maximum of the ranks in the place of each sum, on some ranks."""

    name: ClassVar[str] = "largest"
    ranks: tuple[int, ...]

    def exact(self, program: Program) -> bool:
        return True  # a lie

    def apply(self, program: Program, edit: Rewriter) -> None:
        for node in list(program.nodes):
            if node.target is communication.all_reduce.default and dist.get_rank() in self.ranks:
                edit.recall(node, (node.args[0], "max", node.args[2]), {})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Train(tg.Graph):
    """Data parallel: the mean of the ranks' losses goes back through the wire."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Net()
        self.add_optimizer(torch.optim.Adam(self.net.parameters(), 0.01))

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        return funcol.wait_tensor(funcol.all_reduce(loss.detach(), "avg", dist.group.WORLD))


def step() -> Any:
    """Data parallel by hand: gradients are averaged."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    @tg.step
    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            mean = funcol.all_reduce(parameter.grad / 2, "sum", dist.group.WORLD)
            parameter.grad.copy_(mean)
        optimizer.step()
        return loss

    return train


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(4, 6), torch.randn(4, 3)


def checked(graph: Any, *passes: Pass, **options: Any) -> Any:
    for one in passes:
        graph.config.passes.insert(one)
    return graph.check(*batch(), **options)


def right(rank: int) -> Any:
    return checked(step()), checked(Train())


def served(rank: int) -> Any:
    """Of programs that serve calls."""
    graph = step()
    confirm(graph, *batch())
    before = [p.detach().clone() for p in graph._runner.live.scan().modules["net"].parameters()]
    found = graph.check(*batch())
    now = graph._runner.live.scan().modules["net"].parameters()
    return found, all(map(torch.equal, before, now))


GELU = (aten.relu.default, aten.gelu.default)


def wrong_on_one(rank: int) -> Any:
    """Rank 1's gradients are wrong, and so is what rank 0 is sent, but none of its nodes."""
    return checked(step(), Swap(*GELU, ranks=(1,)))


def wrong_on_both(rank: int) -> Any:
    return checked(step(), Swap(*GELU, ranks=(0, 1)))


def wrong_before_it_is_sent(rank: int) -> Any:
    halves = Swap(aten.div.Tensor, aten.div.Tensor, (1,), lambda args: (args[0], 4))
    return checked(step(), halves)


def another_reduction(rank: int) -> Any:
    return checked(step(), Largest(ranks=(0, 1)))


def another_reduction_on_one(rank: int) -> Any:
    return checked(step(), Largest(ranks=(1,)))


def within_rounding(rank: int) -> Any:
    """No pass promises bits: values are compared beside float64, collectives with them."""
    promises_not = Swap(aten.neg.default, aten.neg.default, (), promises=False)
    fine = checked(step(), promises_not)
    return fine, checked(step(), promises_not, Swap(*GELU, ranks=(1,)))


def captured_wrong_on_one(rank: int) -> Any:
    graph = step()
    confirm(graph, *batch())
    (replay,) = support.replays(graph)
    if rank == 1:
        wrong = expanded(replay.captured.program).copy()
        for node in wrong.nodes:
            if node.target is aten.relu.default:
                node.target = aten.gelu.default
        wrong.gm.recompile()
        replay.captured = replace(replay.captured, program=wrong)
        executable = replace(
            replay.executable,
            function=lambda values: wrong.gm(*values),
            outputs=wrong.signature.outputs,
        )
        replay.code = replace(replay.code, executable=executable)
    return graph.check(*batch())


def lowered_wrong_on_one(rank: int) -> Any:
    graph = step()
    confirm(graph, *batch())
    (replay,) = support.replays(graph)
    if rank == 1:
        lowered = replay.executable.program.copy()
        for node in lowered.nodes:
            if node.target is aten.mse_loss_backward.default:
                node.args = (*node.args[:3], 2)  # summed, not the mean
        lowered.gm.recompile()
        executable = replace(
            replay.executable, function=lambda values: lowered.gm(*values), program=lowered
        )
        replay.code = replace(replay.code, executable=executable)
    return graph.check(*batch())


class ByOption(tg.Graph):
    """Data parallel by option, and ZeRO; with BatchNorm, whose statistics are the first rank's."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(Net(), nn.BatchNorm1d(3))
        self.add_optimizer(torch.optim.Adam(self.net.parameters(), 0.01))
        self.config.enable_data_parallel()
        self.config.enable_zero(bool(stage), stage=max(1, stage), shard_min_size=1)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        return loss


def by_option(rank: int) -> Any:
    return [checked(ByOption(stage)) for stage in range(4)]


def by_option_wrong_on_one(rank: int) -> Any:
    return [checked(ByOption(stage), Swap(*GELU, ranks=(1,))) for stage in range(4)]


def wrapped(rank: int) -> Any:
    """A model in DDP."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(ddp.parameters(), 0.01)

    @tg.step
    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return checked(train)


def in_float64(rank: int) -> Any:
    return checked(step(), precision="float64")


def another_question(rank: int) -> Any:
    return checked(step(), precision="float64" if rank else "")


def refused_on_one(rank: int) -> Any:
    refused = NotSupported("It is not to be.") if rank == 1 else None
    with mock.patch.object(checking, "_refuse", side_effect=refused):
        return checked(step())


CASES = (
    *(right, served, wrong_on_one, wrong_on_both, wrong_before_it_is_sent, another_reduction),
    *(another_reduction_on_one, within_rounding, captured_wrong_on_one, lowered_wrong_on_one),
    *(by_option, by_option_wrong_on_one, wrapped, in_float64, another_question, refused_on_one),
)


def all_cases(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in CASES:
        try:
            found[case.__name__] = case(rank)
        except GraphError as error:
            found[case.__name__] = type(error).__name__, error.what
        dist.barrier()
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return spawn.run(all_cases, 2)


pytestmark = pytest.mark.dist


def verdict(ranks: list[dict[str, Any]], case: Callable[..., Any]) -> Divergence:
    """The one of both ranks."""
    first, second = (rank[case.__name__] for rank in ranks)
    assert isinstance(first, Divergence), first
    assert isinstance(second, Divergence), second
    at_rank = {"graph_error": None, "eager_error": None, "repeatable": True}
    assert replace(first, **at_rank) == replace(second, **at_rank)
    return first


def test_right_steps_are_right_on_both(ranks):
    assert [rank["right"] for rank in ranks] == [(None, None)] * 2


def test_a_check_changes_no_rank(ranks):
    assert [rank["served"] for rank in ranks] == [(None, True)] * 2


def test_the_rank_that_is_wrong_is_named_on_both(ranks):
    found = verdict(ranks, wrong_on_one)
    assert (found.rank, found.op, found.made_by) == (1, "aten.gelu.default", "swap")
    assert found.culprit is not None
    assert (found.culprit.name, found.culprit.edit, found.culprit.edits) == ("swap", 2, 2)
    assert "on rank 1" in str(found)
    assert "net.first.weight" in found.reaches


def test_of_two_the_first_is_named(ranks):
    found = verdict(ranks, wrong_on_both)
    assert (found.rank, found.op) == (0, "aten.gelu.default")


def test_what_is_wrong_when_it_is_sent_is_not_the_receivers_fault(ranks):
    found = verdict(ranks, wrong_before_it_is_sent)
    assert (found.rank, found.op, found.made_by) == (1, "aten.div.Tensor", "swap")


def test_a_collective_that_computes_something_else(ranks):
    found = verdict(ranks, another_reduction)
    assert (found.rank, found.op) == (0, "_c10d_functional.all_reduce.default")
    assert found.culprit is not None
    assert (found.culprit.name, found.culprit.edit, found.culprit.edits) == ("largest", 1, 4)


def test_ranks_that_would_not_meet_are_told(ranks):
    for rank in ranks:
        kind, what = rank["another_reduction_on_one"]
        assert kind == "RanksOutOfStep"
        assert "the program after the passes" in what
        assert "line 1 of it differs" in what
        assert "sum" in what.partition("rank 1 has")[0]
        assert "max" in what.partition("rank 1 has")[2]


def test_within_rounding(ranks):
    assert [rank["within_rounding"][0] for rank in ranks] == [None, None]
    for rank in ranks:
        found = rank["within_rounding"][1]
        assert (found.rank, found.op, found.blame) == (1, "aten.gelu.default", "pass")
        assert found.reaches[0] == "output"


def test_a_capture_that_is_wrong_on_one(ranks):
    found = verdict(ranks, captured_wrong_on_one)
    assert (found.rank, found.op, found.blame) == (1, "aten.gelu.default", "capture")


def test_a_lowering_that_is_wrong_on_one(ranks):
    found = verdict(ranks, lowered_wrong_on_one)
    assert (found.rank, found.op) == (1, "aten.mse_loss_backward.default")
    assert found.lowering


def test_what_options_and_ddp_make_parallel(ranks):
    for rank in ranks:
        assert rank["by_option"] == [None] * 4
        assert rank["wrapped"] is None


def test_the_rank_that_is_wrong_at_each_stage_of_zero(ranks):
    for rank in ranks:
        for found in rank["by_option_wrong_on_one"]:
            assert (found.rank, found.op, found.blame) == (1, "aten.gelu.default", "pass")


def test_how_far_from_float64(ranks):
    for rank in ranks:
        found = rank["in_float64"]
        assert isinstance(found, Accuracy)
        assert found.divergence is None
        assert 0 < found.graph < 1e-5
        assert found.graph == found.eager


def test_ranks_that_ask_for_different_checks(ranks):
    for rank in ranks:
        kind, what = rank["another_question"]
        assert kind == "RanksOutOfStep"
        assert "precision ''" in what
        assert "precision 'float64'" in what


def test_a_refusal_is_one_of_all(ranks):
    told = [rank["refused_on_one"] for rank in ranks]
    assert told[1] == ("NotSupported", "It is not to be.")
    assert told[0] == ("NotSupported", "Rank 1 refuses the check: It is not to be.")
