"""What ranks agree on before they run a program together, with two processes and gloo."""

from __future__ import annotations

import copy
import re
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as fc

import torchgraph as tg
from tests.distributed.spawn import run
from torchgraph.distributed.errors import RankAbsent, RanksDiffer

CASES: dict[str, Any] = {}


def case(function: Any) -> Any:
    """Decorator: run on each of two ranks, in this order; what it returns is looked at below."""
    CASES[function.__name__] = function
    return function


class Trained:
    """A small model, and the same trained in eager, whose gradients are averaged over ranks."""

    def __init__(self, rank: int, *, lr: float = 0.1, scale: float = 1.0, optimizer: Any = None):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.twin = copy.deepcopy(self.model)
        make = optimizer or torch.optim.Adam
        self.rank, self.scale = rank, scale
        self.optimizer = make(self.model.parameters(), lr)
        self.eager_optimizer = make(self.twin.parameters(), lr)
        self.step = tg.step(self.body)

    def body(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return train(self.model, self.optimizer, x, y, self.scale)

    def both(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """One step of each; True when all is equal to the bit."""
        loss = self.step(x, y)
        expected = train(self.twin, self.eager_optimizer, x, y, self.scale)
        pairs = zip(self.model.parameters(), self.twin.parameters(), strict=True)
        return bool(torch.equal(loss, expected)) and all(torch.equal(a, b) for a, b in pairs)

    @property
    def replays(self) -> int:
        return self.step._runner.cache.hits


def train(model: nn.Module, optimizer: Any, x: Any, y: Any, scale: float) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y) * scale
    loss.backward()
    for p in model.parameters():
        p.grad.copy_(fc.all_reduce(p.grad / 2, "sum", dist.group.WORLD))
    optimizer.step()
    return loss.detach()


def batch(rank: int, number: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(size, 4, generator=made), torch.randn(size, 2, generator=made)


def said(function: Any, *args: Any) -> tuple[str, str]:
    """The class of what is raised, and its words."""
    try:
        function(*args)
    except Exception as error:  # which one is looked at in the test
        return type(error).__name__, str(error)
    return "", ""


@case
def equal_programs(rank: int) -> Any:
    trained = Trained(rank)
    same = [trained.both(*batch(rank, number)) for number in range(6)]
    return same, trained.replays, trained.step._runner.together.takes_part


@case
def another_constant(rank: int) -> Any:
    trained = Trained(rank, scale=1.0 + rank)
    first = trained.both(*batch(rank, 0))
    return first, said(trained.step, *batch(rank, 1))


@case
def another_constant_that_is_meant(rank: int) -> Any:
    trained = Trained(rank, scale=1.0 + rank)
    trained.step.config.set_agreement("collectives")
    return [trained.both(*batch(rank, number)) for number in range(5)], trained.replays


@case
def a_pass_is_disabled(rank: int) -> Any:
    trained = Trained(rank)
    if rank:
        trained.step.config.passes.disable("cse")
    trained.both(*batch(rank, 0))
    return said(trained.step, *batch(rank, 1))


@case
def another_rate(rank: int) -> Any:
    trained = Trained(rank, lr=0.1 + rank)
    trained.both(*batch(rank, 0))
    return said(trained.step, *batch(rank, 1))


@case
def another_rate_later(rank: int) -> Any:
    trained = Trained(rank)
    same = [trained.both(*batch(rank, number)) for number in range(4)]
    before = [p.clone() for p in trained.model.parameters()]
    trained.optimizer.param_groups[0]["lr"] = 0.01 * (1 + rank)
    told = said(trained.step, *batch(rank, 4))
    untouched = all(map(torch.equal, before, trained.model.parameters()))
    trained.optimizer.param_groups[0]["lr"] = 0.02
    trained.eager_optimizer.param_groups[0]["lr"] = 0.02
    return same, told, untouched, trained.both(*batch(rank, 5)), trained.replays


@case
def other_sizes(rank: int) -> Any:
    """The last batch of an epoch is smaller on one rank: its own program, the same collectives."""
    trained = Trained(rank)
    sizes = [6, 6, 6, 4 + rank, 6, 6, 4 + rank, 6, 4 + rank]
    same = [trained.both(*batch(rank, n, size)) for n, size in enumerate(sizes)]
    return same, trained.replays


@case
def one_has_no_program(rank: int) -> Any:
    """Rank 1 has met no batch of 5: both run in eager, and so on, until both have programs."""
    trained = Trained(rank)
    sizes = [6, 6, 6, 5 if rank else 6, 6, 5 if rank else 6, 5 if rank else 6, 6]
    same = [trained.both(*batch(rank, n, size)) for n, size in enumerate(sizes)]
    return same, trained.replays


def branching(rank: int, late: bool) -> Any:
    torch.manual_seed(3)
    model, twin = (nn.Linear(4, 2) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    made = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin)]

    def body(m: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        y = m(x)
        if not late and x.sum() > 0:
            y = y * 2
        loss = fc.all_reduce(y.pow(2).mean(), "sum", dist.group.WORLD)
        if late and x.sum() > 0:
            loss = loss * 2
        y.pow(2).mean().backward()
        for p in m.parameters():
            p.grad.copy_(fc.all_reduce(p.grad / 2, "sum", dist.group.WORLD))
        optimizer.step()
        return loss.detach() + 0

    step = tg.step(lambda x: body(model, made[0], x))
    signs = [(1, 1), (1, 1), (1, 1), (1, -1), (-1, 1), (1, -1), (-1, -1), (-1, -1), (-1, -1)]
    signs += [(1, 1), (1, -1), (-1, 1), (1, 1), (-1, -1)]
    same = []
    for number, sign in enumerate(signs):
        x = batch(rank, number)[0].abs() * sign[rank]
        loss, expected = step(x), body(twin, made[1], x)
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        same.append(torch.equal(loss, expected) and all(torch.equal(a, b) for a, b in pairs))
    return same, step._runner.cache.hits


@case
def a_branch_before_the_collective(rank: int) -> Any:
    return branching(rank, late=False)


@case
def a_branch_behind_the_collective(rank: int) -> Any:
    return branching(rank, late=True)


class Accumulating(tg.Graph):
    """A branch on each micro-batch, and a collective behind it."""

    def __init__(self, micro_batches: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.model = nn.Linear(4, 2)
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))
        self.config.set_gradient_accumulation_steps(micro_batches)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        y = self.model(x)
        if x.sum() > 0:
            y = y * 2
        (y.pow(2).mean() + 0 * fc.all_reduce(y.sum(), "sum", dist.group.WORLD)).backward()
        return y.sum()


@case
def a_branch_in_a_micro_batch(rank: int) -> Any:
    whole, parts = Accumulating(1), Accumulating(3)
    signs = [(1, 1), (1, 1), (1, 1), (1, -1), (-1, 1), (1, -1), (1, -1), (-1, -1), (1, 1)]
    near = []
    for number, sign in enumerate(signs):
        x = batch(rank, number)[0].abs() * sign[rank]
        near.append(torch.allclose(whole(x), parts(x).sum(), atol=1e-5))
    return near, whole._runner.cache.hits, parts._runner.cache.hits


@case
def other_graphs(rank: int) -> Any:
    trained = Trained(rank)

    @tg.step
    def mean(x: torch.Tensor) -> torch.Tensor:
        return fc.all_reduce(x.sum(), "sum", dist.group.WORLD) + 0

    for number in range(3):
        trained.both(*batch(rank, number))
        mean(batch(rank, number)[0])
    x, y = batch(rank, 3)
    return said(trained.step, x, y) if rank else said(mean, x)


@case
def one_raises(rank: int) -> Any:
    """An error in the user's code of both ranks leaves nothing behind."""
    trained = Trained(rank)
    trained.both(*batch(rank, 0))
    told = said(trained.step, torch.ones(3, 5), torch.ones(3, 2))
    return told, [trained.both(*batch(rank, n)) for n in range(1, 5)], trained.replays


@case
def off(rank: int) -> Any:
    trained = Trained(rank, scale=1.0 + rank)
    trained.step.config.set_agreement("off")
    same = [trained.both(*batch(rank, number)) for number in range(4)]
    return same, trained.replays


@case
def fewer_calls(rank: int) -> Any:
    """Last: rank 1 makes a call less, and does something else for long."""
    trained = Trained(rank)
    trained.step.config.set_agreement(timeout=3)
    for number in range(4):
        trained.both(*batch(rank, number))
    begun = time.monotonic()
    told = ("", "") if rank else said(trained.step, *batch(rank, 4))
    if rank:
        time.sleep(8)
    return told, time.monotonic() - begun


def closed_before_the_process_group(rank: int) -> Any:
    trained = Trained(rank)
    for number in range(3):
        trained.both(*batch(rank, number))
    held = len(trained.step._runner.cache)
    dist.destroy_process_group()
    return held, len(trained.step._runner.cache)


def all_cases(rank: int) -> dict[str, Any]:
    return {name: function(rank) for name, function in CASES.items()}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(all_cases, 2)


def test_equal_programs_run_from_the_third_call_on(ranks):
    for rank in ranks:
        same, replays, takes_part = rank["equal_programs"]
        assert all(same)
        assert replays == 4
        assert takes_part


def test_a_constant_of_one_rank_is_found_before_a_program_runs(ranks):
    for rank in ranks:
        first, (kind, text) = rank["another_constant"]
        assert first
        assert kind == RanksDiffer.__name__
        assert "Ranks 0 and 1 have made different programs" in text
        assert re.search(r"mul\.Tensor\(mse_loss\w*, 2\.0\)", text)
    assert ranks[0]["another_constant"] == ranks[1]["another_constant"]


def test_ranks_may_be_meant_to_differ(ranks):
    for rank in ranks:
        same, replays = rank["another_constant_that_is_meant"]
        assert all(same)
        assert replays == 3


def test_a_disabled_pass_is_found(ranks):
    for rank in ranks:
        kind, text = rank["a_pass_is_disabled"]
        assert kind == RanksDiffer.__name__
        assert "option passes" in text
        assert "'cse'" in text


def test_another_learning_rate_is_found(ranks):
    for rank in ranks:
        kind, text = rank["another_rate"]
        assert kind == RanksDiffer.__name__
        assert "have other numbers" in text
        assert {"0.1", "1.1"} <= set(re.findall(r"lr = (\S+)", text))


def test_a_rate_that_moves_on_one_rank_is_found_and_mended(ranks):
    for rank in ranks:
        same, (kind, text), untouched, mended, replays = rank["another_rate_later"]
        assert all(same)
        assert kind == RanksDiffer.__name__
        assert "lr = 0.01" in text
        assert "lr = 0.02" in text
        assert untouched
        assert mended
        assert replays == 3


def test_ranks_may_have_batches_of_other_sizes(ranks):
    for rank in ranks:
        same, replays = rank["other_sizes"]
        assert all(same)
        assert replays == 5  # 6, 6 twice; the small ones are recorded, confirmed, replayed


def test_all_run_in_eager_where_one_has_no_program(ranks):
    for rank in ranks:
        same, replays = rank["one_has_no_program"]
        assert all(same)
        assert replays == ranks[0]["one_has_no_program"][1]
        assert replays >= 3


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_branch_on_data_is_decided_together(ranks, where):
    results = [rank[f"a_branch_{where}_the_collective"] for rank in ranks]
    assert all(all(same) for same, _ in results)
    assert results[0][1] == results[1][1]
    assert results[0][1] >= 2


def test_a_branch_in_a_micro_batch_is_decided_together(ranks):
    results = [rank["a_branch_in_a_micro_batch"] for rank in ranks]
    assert results[0] == results[1]
    near, whole, parts = results[0]
    assert all(near)
    assert whole == parts >= 3


def test_ranks_that_call_other_graphs_are_told(ranks):
    for rank in ranks:
        kind, text = rank["other_graphs"]
        assert kind == RanksDiffer.__name__
        assert "Rank 0 calls mean" in text
        assert "rank 1 calls body" in text


def test_an_error_of_the_users_stays_what_it_is(ranks):
    for rank in ranks:
        (kind, text), same, replays = rank["one_raises"]
        assert kind == "RuntimeError"
        assert "mat1" in text
        assert all(same)
        assert replays == 3


def test_nothing_is_compared_where_nobody_wants_it(ranks):
    for rank in ranks:
        assert rank["off"] == ([True] * 4, 2)


def test_a_rank_that_makes_fewer_calls_is_named(ranks):
    (kind, text), seconds = ranks[0]["fewer_calls"]
    assert kind == RankAbsent.__name__
    assert "Rank 1 has not come to call 5 of body" in text
    assert "drop_last" in text
    assert 2 < seconds < 8


def test_programs_are_given_back_before_the_process_group_ends():
    assert run(closed_before_the_process_group, 2) == [(1, 0), (1, 0)]
