"""States that come to share memory, or no longer do: another program, or eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.support import thinned
from torchgraph._torch import storage_id
from torchgraph.guards.sharing import Sharing
from torchgraph.testing import counters

pytestmark = pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))


def buffers(model: nn.Module) -> None:
    model[3].running_mean.data = model[1].running_mean.data


def parameters(model: nn.Module) -> None:
    model[2].weight.data = model[0].weight.data


def part(model: nn.Module) -> None:
    model[1].bias.data = model[0].weight.data[1]


def over_numpy(model: nn.Module) -> None:
    held = np.zeros(6, dtype=np.float32)
    model[1].bias.data = torch.from_numpy(held[:4])
    model[3].bias.data = torch.from_numpy(held[2:])


def at_the_address_of_before(model: nn.Module) -> None:
    """Another storage object over the first one's memory, where the second one's was."""
    held, was = model[1].bias.detach().numpy(), storage_id(model[3].bias)
    model[3].bias.data = torch.empty(0)
    again = [torch.from_numpy(held) for _ in range(100)]
    model[3].bias.data = next((one for one in again if storage_id(one) == was), again[0])


OPTIONS: list[dict[str, Any]] = [{}, {"foreach": True}, {"fused": True}]
TIES = [buffers, parameters, part, over_numpy, at_the_address_of_before]


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("options", thinned(OPTIONS, keep=OPTIONS[::2]), ids=str)
@pytest.mark.parametrize("backend", thinned(["aten", "inductor"], keep=["aten"]))
def test_states_that_are_tied_later(
    tie: Callable[[nn.Module], None], options: dict[str, Any], backend: str
) -> None:
    models = [net(), net()]
    optimizers = [optim.SGD(model.parameters(), lr=0.1, **options) for model in models]
    step = tg.train_step(models[0], nn.functional.mse_loss, optimizers[0])
    step.config.set_backend(backend)
    for number in range(8):
        if number == 5:
            before = counters.replays
            assert before
            for model in models:
                tie(model)
        x, y = torch.randn(6, 4), torch.randn(6, 4)
        step(x, y)
        optimizers[1].zero_grad()
        nn.functional.mse_loss(models[1](x), y).backward()
        optimizers[1].step()
        states = [model.state_dict().values() for model in models]
        for left, right in zip(*states, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_a_part_of_flat_memory_is_nobodys_but_its_own() -> None:
    model = net()
    step = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    step.config.set_backend("aten")
    data = torch.randn(6, 4), torch.randn(6, 4)
    for _ in range(4):
        step(*data)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    start = 0
    for parameter in model.parameters():
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    before = counters.replays
    step(*data)
    assert counters.replays == before + 1
    assert torch.equal(flat, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_it_says_which() -> None:
    a, b, c = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    found = Sharing({"a": a, "b": b, "c": c})
    assert found.hold()
    c.data = a.data
    assert found.changed() == "a and c share memory now"
    again = Sharing({"a": a, "b": b, "c": c})
    c.data = torch.zeros(3)
    assert again.changed() == "a and c share memory no longer"
    held = torch.zeros(9)
    a.data, b.data = held[:3], held[1:4]
    shifted = Sharing({"a": a, "b": b, "c": c})
    b.data = held[2:5]
    assert not shifted.hold()


def test_a_storage_that_is_gone_has_no_successor_at_its_address() -> None:
    model = net()
    found = Sharing(dict(model.named_parameters()))
    at_the_address_of_before(model)
    assert not found.hold()


def test_nothing_is_there_to_share() -> None:
    empty = torch.zeros(0)
    assert Sharing({"a": empty, "b": empty.view(0), "s": torch.eye(2).to_sparse()}).hold()
