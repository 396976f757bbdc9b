"""A backward that waits may have saved the parameters: what runs dry does not count as a write."""

import pytest
import torch
from torch import nn

import torchgraph as tg


def _model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), 0.1)


def _step():
    model, optimizer = _model()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return tg.step(step), model, optimizer


def _graph():
    model, optimizer = _model()

    class Training(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x):
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    return Training(), model, optimizer


X = torch.ones(4, 3) * torch.arange(4.0)[:, None]
LOOKS = {
    "check": lambda graph, path: graph.check(X),
    "profile": lambda graph, path: graph.profile(X),
    "memory": lambda graph, path: graph.report(memory=[X]),
    "export": lambda graph, path: tg.export(graph, path / "exported", args=(X,)),
}


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("make", [_step, _graph])
def test_a_backward_that_waits_works_as_before(make, look, calls, tmp_path):
    if look == "export" and not calls:
        pytest.skip("Adam's first step makes its slots")
    graph, model, optimizer = make()
    for _ in range(calls):
        graph(X)
    optimizer.zero_grad()
    inner = torch.ones(4, 3, requires_grad=True)
    model.eval()
    waiting = model(inner).sum() + (model[0].weight * model[0].weight).sum()
    expected = torch.autograd.grad(waiting, [inner, *model.parameters()], retain_graph=True)
    model.train()
    LOOKS[look](graph, tmp_path)
    found = torch.autograd.grad(waiting, [inner, *model.parameters()])
    assert all(map(torch.equal, expected, found))


def test_a_cast_of_a_weight_is_made_again_after_a_dry_run():
    """A write after it may bring the count to one that was met in it."""

    def losses(looks):
        graph, model, _ = _graph()
        graph.config.enable_amp(True, dtype=torch.bfloat16)
        found = []
        for number in range(8):
            found.append(graph(X).detach().clone())
            if looks:
                graph.check(X)
            with torch.no_grad():
                for _ in range(1 + number % 3):
                    model[0].weight.add_(0.5)
        return found

    assert all(map(torch.equal, losses(False), losses(True)))
