"""Data parallel with all else that a training step does, beside eager DDP that does the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.features import FEATURES, on_a_mesh
from tests.distributed.spawn import run


def _work(rank: int) -> dict[str, Any]:
    return {name: feature(rank) for name, feature in FEATURES.items()}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(_work, 2)


def equal(ranks: list[dict[str, Any]], feature: str, kind: str, eager: str = "eager") -> None:
    """To the last bit, on each rank."""
    for rank in ranks:
        ours, theirs = rank[feature][kind], rank[feature][eager]
        assert ours["losses"] == theirs["losses"]
        assert list(ours["state"]) == list(theirs["state"])
        for name, value in theirs["state"].items():
            assert torch.equal(ours["state"][name], value), name


def by_programs(ranks: list[dict[str, Any]], feature: str, kind: str, steps: int = 17) -> None:
    for rank in ranks:
        assert (rank[feature][kind]["why"], rank[feature][kind]["runs"] >= steps) == ("", True)


def test_accumulation_communicates_once_a_call(ranks):
    equal(ranks, "accumulation", "ours")
    by_programs(ranks, "accumulation", "ours")
    assert sum("all_reduce" in op for op in ranks[0]["accumulation"]["ours"]["ops"]) == 1


@pytest.mark.parametrize("kind", ["graph", "step", "step of ddp"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks, kind):
    equal(ranks, "overflow", kind)
    by_programs(ranks, "overflow", kind)
    scales = {rank["overflow"][one]["scale"] for rank in ranks for one in (kind, "eager")}
    assert len(scales) == 1


@pytest.mark.parametrize("kind", ["graph", "step"])
def test_clipping_sees_the_averages(ranks, kind):
    equal(ranks, "clipping", kind)
    by_programs(ranks, "clipping", kind)


@pytest.mark.parametrize(("kind", "eager"), [("step", "eager"), ("step of ddp", "eager conv")])
def test_no_sync_is_understood(ranks, kind, eager):
    equal(ranks, "unsynced", kind, eager)
    by_programs(ranks, "unsynced", kind)
    assert sum("all_reduce" in op for op in ranks[0]["unsynced"][kind]["ops"]) == 1


def test_half_precision(ranks):
    equal(ranks, "amp", "graph")
    by_programs(ranks, "amp", "graph")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["graph", "step"])
def test_checkpointing(ranks, kind, reentrant):
    equal(ranks, "recomputed", f"{kind} {reentrant}", f"eager {reentrant}")
    by_programs(ranks, "recomputed", f"{kind} {reentrant}")
    ops = ranks[0]["recomputed"][f"{kind} {reentrant}"]["ops"]
    assert sum("all_reduce" in op for op in ops) == 1


def test_a_scheduler_and_a_state_that_is_loaded(ranks):
    equal(ranks, "scheduled", "ours")


def test_a_fused_update(ranks):
    for rank in ranks:
        for name, value in rank["scheduled"]["eager"]["state"].items():
            ours = rank["scheduled"]["fused"]["state"][name]
            torch.testing.assert_close(ours, value, rtol=0, atol=1e-6)
        assert "torchgraph.adam_update.default" in rank["scheduled"]["fused"]["ops"]


def test_each_evaluation_of_a_closure_is_averaged(ranks):
    equal(ranks, "closures", "graph")


@pytest.mark.parametrize("kind", ["graph", "step"])
def test_calls_in_eager_are_averaged(ranks, kind):
    equal(ranks, "in_eager", kind)
    for rank in ranks:
        assert "numpy" in rank["in_eager"][kind]["why"]
        assert rank["in_eager"][kind]["runs"] == 0


@pytest.mark.parametrize(
    "option", ["", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"]
)
def test_a_ddp_object_goes_on_in_eager(ranks, option):
    equal(ranks, "afterwards", f"ours {option}", f"eager {option}")


def test_ranks_begin_with_what_the_first_one_has(ranks):
    first = ranks[0]["made_equal"]["state"]
    for rank in ranks:
        for name, value in rank["made_equal"]["state"].items():
            if "running" not in name:
                assert torch.equal(value, first[name]), name


def test_a_dimension_of_a_mesh():
    equal([{"mesh": found} for found in run(on_a_mesh, 4)], "mesh", "ours")
