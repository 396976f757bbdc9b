"""Ranks run one backend at a time: what they update would drift apart by rounding."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import torchgraph as tg
from tests.distributed.spawn import run
from tests.distributed.test_agreement import Trained, batch
from torchgraph.replay import switch

pytestmark = [pytest.mark.dist, pytest.mark.slow]  # each case compiles, on two ranks


def other_code(rank: int) -> Any:
    """Inductor's code takes over after another number of calls where batches have other sizes."""
    trained = Trained(rank)
    trained.step.config.set_backend("auto", switch_at=6)
    sizes = [6] * 4 + [4 + 2 * rank, 6] * 6
    seen = []
    for number, size in enumerate(sizes):
        before = trained.replays
        trained.step(*batch(rank, number, size))
        runs_on = {replay.runs_on for replay in trained.step._runner.cache}
        seen.append((trained.replays - before, sorted(runs_on)))
    return seen, [p.detach().clone() for p in trained.model.parameters()]


def one_stays_on_aten(rank: int) -> Any:
    """Rank 1 has no compiler."""
    trained = Trained(rank)
    trained.step.config.set_backend("inductor")
    fails = mock.patch.object(switch, "wait_for", side_effect=OSError("no compiler"))
    with warnings.catch_warnings(record=True) as caught, fails if rank else nullcontext():
        warnings.simplefilter("always")
        for number in range(6):
            trained.step(*batch(rank, number))
    words = [str(one.message).splitlines()[0] for one in caught]
    (replay,) = trained.step._runner.cache
    parameters = [p.detach().clone() for p in trained.model.parameters()]
    return words, replay.runs_on, replay.backend_plan, trained.replays, parameters


class Chosen(nn.Module):
    """Which layer is used follows from the data, or from an argument."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, number: int | None = None) -> torch.Tensor:
        total = x.sum()
        if number is None:
            number = 0 if total > 1 else 1 if total < -1 else 2
        return torch.tanh(self.experts[number](x))


def _chosen(rank: int, backend: dict[str, Any], numbers: Any) -> Any:
    """Losses and parameters beside DDP's; how many calls programs ran."""
    found, programs = [], 0
    for ours in (True, False):
        model = Chosen()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        runs: Any = model if ours else DDP(model, find_unused_parameters=True)

        def step(x: torch.Tensor, number: Any, runs=runs, optimizer=optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = runs(x, number).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run: Any = tg.step(step) if ours else step
        if ours:
            run.config.enable_data_parallel()
            run.config.set_backend(**backend)
            run.config.set_agreement(timeout=20)
        losses = [run(batch(rank, i)[0], n).item() for i, n in enumerate(numbers)]
        found.append((losses, [p.detach().clone() for p in model.parameters()]))
        programs = run.report().calls.programs if ours else programs
    return (*found, programs)


def by_data(rank: int) -> Any:
    return _chosen(rank, {"backend": "auto", "switch_at": 4}, [None] * 24)


def by_argument(rank: int) -> Any:
    pairs = [(1, 0)] * 3 + [(0, 1)] * 3 + [(1, 1), (1, 1), (0, 0), (1, 1), (1, 1)]
    return _chosen(rank, {"backend": "aten"}, [pair[rank] for pair in pairs])


def every(rank: int) -> dict[str, Any]:
    cases = (other_code, one_stays_on_aten, by_data, by_argument)
    return {case.__name__: case(rank) for case in cases}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(every, 2)


def test_ranks_do_not_run_aten_beside_inductor(ranks):
    (seen, parameters), (others, same) = (rank["other_code"] for rank in ranks)
    assert [replayed for replayed, _ in seen] == [replayed for replayed, _ in others]
    assert any("inductor" in runs_on for _, runs_on in seen)
    assert all(map(torch.equal, parameters, same))


def test_ranks_that_branch_otherwise_meet_while_compiled_code_is_compared(ranks):
    for rank in ranks:
        (losses, parameters), (expected, others), programs = rank["by_data"]
        assert losses == pytest.approx(expected, abs=1e-5)
        torch.testing.assert_close(parameters, others, rtol=0, atol=1e-4)
        assert all(map(torch.equal, parameters, ranks[0]["by_data"][0][1]))
        assert programs >= 4


def test_only_what_some_rank_uses_now_is_averaged(ranks):
    """Each program was recorded beside another one of the other rank."""
    for rank in ranks:
        (losses, parameters), (expected, others), programs = rank["by_argument"]
        assert losses == expected
        assert all(map(torch.equal, parameters, others))
        assert programs >= 2


def test_all_stay_on_aten_where_one_does(ranks):
    for number, rank in enumerate(ranks):
        words, runs_on, plan, replays, parameters = rank["one_stays_on_aten"]
        assert runs_on == "aten"
        assert replays == 4
        (word,) = [word for word in words if "stays on the aten backend" in word]
        assert number or "So does rank 1" in word
        assert plan.startswith("stays on aten: ")
        assert all(map(torch.equal, parameters, ranks[0]["one_stays_on_aten"][-1]))
