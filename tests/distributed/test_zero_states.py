"""What a rank holds of gradients, and whole tensors that are loaded into parts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.distributed import spawn
from tests.distributed.test_zero_users import batch, layers, loop, said
from torchgraph.errors import StateDictMismatch

pytestmark = pytest.mark.dist


# --- memory ---------------------------------------------------------------------------------------


def gradients(rank: int) -> Any:
    """The share of all gradients that this rank holds, after a call in eager and by a program."""
    found = {}
    for stage in (2, 3):
        model = layers()
        step = tg.step(loop(model, torch.optim.AdamW(model.parameters())))
        step.config.enable_zero(True, stage=stage, shard_min_size=1)
        shares = []
        for number in range(5):
            step(batch(rank, number))
            held = [p.grad for p in model.parameters()]
            here = sum(gradient.to_local().untyped_storage().nbytes() for gradient in held[:1])
            own = sum(gradient.to_local().numel() for gradient in held)
            shares.append((own / sum(g.numel() for g in held), here))
        found[stage] = shares, step.report().calls.programs
    return found


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_holds_its_part_of_the_gradients(ranks, stage):
    whole_bytes = 4 * sum(p.numel() for p in layers().parameters())
    for rank in ranks:
        shares, programs = rank["gradients"][stage]
        assert programs >= 2
        for share, memory in shares:
            assert share <= 1 / 2 + 0.05
            assert memory <= (1 / 2 + 0.05) * whole_bytes  # what the parts lie in is no larger


# --- states ---------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """With a parameter of no dimension, as CLIP's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class Trained(tg.Graph):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.model = Scaled()
        self.add_optimizer(torch.optim.AdamW(self.model.parameters(), 1e-2))
        self.config.enable_data_parallel()
        self.config.enable_zero(stage > 0, stage=max(stage, 1), shard_min_size=1)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def states(rank: int) -> Any:
    plain, found = Trained(0), {}
    for number in range(3):
        plain(batch(rank, number))
    kept = copy.deepcopy(plain.state_dict())
    expected = [plain(batch(rank, number)).item() for number in range(3, 6)]
    for stage in (0, 2, 3):
        graph = Trained(stage)
        graph(batch(rank, 9))
        graph.load_state_dict(kept)
        own = copy.deepcopy(graph.state_dict())
        before = [graph(batch(rank, number)).item() for number in range(3, 6)]
        graph.load_state_dict(own)
        after = [graph(batch(rank, number)).item() for number in range(3, 6)]
        wrong = {**kept, "model": {**kept["model"], "linear.weight": torch.ones(3, 4)}}
        found[stage] = before, after, said(lambda g=graph, w=wrong: g.load_state_dict(w))
    return expected, found


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_whole_tensors_are_loaded_into_parts(ranks, stage):
    for rank in ranks:
        expected, found = rank["states"]
        before, after, wrong = found[stage]
        assert before == after == expected
        assert wrong.startswith(StateDictMismatch.__name__)


def every(rank: int) -> dict[str, Any]:
    return {"gradients": gradients(rank), "states": states(rank)}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return spawn.run(every, 2)
