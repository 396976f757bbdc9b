"""Ranks run one backend at a time: what they update would drift apart by rounding."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch

from tests.distributed.spawn import run
from tests.distributed.test_agreement import Trained, batch
from torchgraph.replay import switch

pytestmark = pytest.mark.dist


def other_code(rank: int) -> Any:
    """Inductor's code takes over after another number of calls where batches have other sizes."""
    trained = Trained(rank)
    trained.step.config.set_backend("auto", switch_at=6)
    sizes = [6] * 4 + [4 + 2 * rank, 6] * 6
    seen = []
    for number, size in enumerate(sizes):
        before = trained.replays
        trained.step(*batch(rank, number, size))
        runs_on = {replay.runs_on for replay in trained.step._cache}
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
    (replay,) = trained.step._cache
    parameters = [p.detach().clone() for p in trained.model.parameters()]
    return words, replay.runs_on, replay.backend_plan, trained.replays, parameters


def every(rank: int) -> dict[str, Any]:
    return {"other_code": other_code(rank), "one_stays_on_aten": one_stays_on_aten(rank)}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(every, 2)


def test_ranks_do_not_run_aten_beside_inductor(ranks):
    (seen, parameters), (others, same) = (rank["other_code"] for rank in ranks)
    assert [replayed for replayed, _ in seen] == [replayed for replayed, _ in others]
    assert any("inductor" in runs_on for _, runs_on in seen)
    assert all(map(torch.equal, parameters, same))


def test_all_stay_on_aten_where_one_does(ranks):
    for number, rank in enumerate(ranks):
        words, runs_on, plan, replays, parameters = rank["one_stays_on_aten"]
        assert runs_on == "aten"
        assert replays == 4
        (word,) = [word for word in words if "stays on the aten backend" in word]
        assert number or "So does rank 1" in word
        assert plan.startswith("stays on aten: ")
        assert all(map(torch.equal, parameters, ranks[0]["one_stays_on_aten"][-1]))
