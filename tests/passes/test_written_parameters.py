"""Fused updates start from what build wrote into a parameter, or leave its update as it is."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "fused AdamW": lambda p: optim.AdamW(p, lr=0.01, fused=True),
}


class Writes(tg.Graph):
    """``where``: the part of build in which the weight is clamped, or the momentum halved."""

    def __init__(self, model, optimizer, where):
        super().__init__()
        self.model = model
        self.where = where
        self.add_optimizer(optimizer)
        self.config.allow_fuse_model_update_ops()
        self.config.enable_multi_tensor_update()

    def build(self, x):
        if self.where == "before":
            clamp(self.model)
        loss = self.model(x).square().mean()
        loss.backward()
        if self.where == "after":
            clamp(self.model)
        return loss


def clamp(model):
    with torch.no_grad():
        model.weight.clamp_(-0.1, 0.1)


def eager(model, optimizer, where, x):
    if where == "before":
        clamp(model)
    loss = model(x).square().mean()
    loss.backward()
    if where == "after":
        clamp(model)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("where", ["before", "after", "not at all"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_written_in_build(name, where):
    torch.manual_seed(0)
    mine, other = nn.Linear(4, 3), nn.Linear(4, 3)
    other.load_state_dict(mine.state_dict())
    optimizer = OPTIMIZERS[name](other.parameters())
    graph = Writes(mine, OPTIMIZERS[name](mine.parameters()), where)
    for x in torch.randn(6, 5, 4):
        torch.testing.assert_close(graph(x), eager(other, optimizer, where, x))
    for one, wanted in zip(mine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, wanted)
    reasons = {r.reason for record in graph.report().passes for r in record.refusals}
    assert any("a new value of its own" in reason for reason in reasons) == (where != "not at all")
