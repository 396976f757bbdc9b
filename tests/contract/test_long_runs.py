"""Long runs: a variant that appears late stops nothing, and nothing drifts."""

from __future__ import annotations

import torch
from torch import nn

import torchgraph as tg
from torchgraph.testing import counters


class Warns(nn.Module):
    """Takes another path where its input is large: by a value, by a size, by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
        self.head, self.other = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        out = self.other(hidden) if bool((x > 9).any()) else self.head(hidden)
        return out.pow(2).mean()


class Train(tg.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x)
        loss.backward()
        return loss


def test_a_variant_that_appears_at_step_30_of_50():
    torch.manual_seed(0)
    model, twin = Warns(), Warns()
    twin.load_state_dict(model.state_dict())
    graph = Train(model)
    other = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    state = torch.get_rng_state()
    replays = counters.replays
    for step in range(50):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        if step >= 30 and step % 3 == 0:
            x[0, 0] = 10.0
        torch.set_rng_state(state)
        expected = twin(x)
        expected.backward()
        other.step()
        other.zero_grad()
        torch.set_rng_state(state)
        assert torch.equal(graph(x), expected.detach()), step
        state = torch.get_rng_state()
    for mine, its in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
    # One before the other head has optimizer state, and one of each path since then.
    assert graph.report().programs.captures == 3
    assert counters.replays - replays > 40
