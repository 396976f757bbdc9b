"""What users do between calls: batches that are written, modes, frozen weights, attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import HistoryDiffers


class Net(nn.Module):
    """Linear layers, a norm and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.activation: Any = torch.relu

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.activation(self.norm(self.first(x)))) * self.factor


def _made(every: int | None = None) -> tuple[Net, Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = tg.train_step(model, nn.MSELoss(), optimizer)
    step.config.set_backend("aten")
    step.config.keep_history(40, every=every)
    return model, step


def _batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator))
        for _ in range(count)
    ]


def _copy(into: torch.Tensor, batch: torch.Tensor) -> None:
    into.copy_(batch)


def _data(into: torch.Tensor, batch: torch.Tensor) -> None:
    into.data.copy_(batch)


def _numpy(into: torch.Tensor, batch: torch.Tensor) -> None:
    into.numpy()[:] = batch.numpy()


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("fill", [_copy, _data, _numpy])
def test_a_static_batch_however_it_is_filled(fill, every, tmp_path):
    _, step = _made(every)
    x, y = torch.empty(6, 4), torch.empty(6, 1)
    for number, batch in enumerate(_batches(20), 1):
        fill(x, batch[0])
        fill(y, batch[1])
        if number == 20:
            x.data[0, 0] = torch.nan
        step(x, y)
    found = tg.bisect(step, directory=tmp_path)
    assert found is not None
    assert (found.step, found.came_with) == (20, "args[0]")


@pytest.mark.parametrize("fill", [_copy, _data, _numpy])
def test_batches_that_are_written_after_all_calls(fill, tmp_path):
    _, step = _made()
    batches = _batches(20)
    for x, y in batches:
        step(x, y)
    for x, _ in batches:
        fill(x, torch.full_like(x, torch.nan))
    assert tg.bisect(step, directory=tmp_path) is None


def test_a_batch_that_comes_again_is_copied_once_until_it_is_written():
    _, step = _made()
    (x, y), *_ = _batches(1)
    for number in range(1, 11):
        if number == 6:
            x.data.add_(1)
        step(x, y)
    held = [record.held.call.tensors for record in step._runner.reruns.history.records]
    assert len({id(tensors[0]) for tensors in held}) == 2
    assert len({id(tensors[1]) for tensors in held}) == 1
    assert torch.equal(held[5][0], held[4][0] + 1)


def _modes(model: Net, number: int) -> None:
    model.train(number % 7 < 5)


def _freezes(model: Net, number: int) -> None:
    if number in (9, 14):
        model.first.weight.requires_grad_(number == 14)


def _factors(model: Net, number: int) -> None:
    if number == 12:
        model.factor = 0.5
    if number == 17:
        del model.factor


def _activations(model: Net, number: int) -> None:
    if number == 12:
        model.activation = torch.tanh


@pytest.mark.parametrize("change", [_modes, _freezes, _factors, _activations])
def test_what_is_set_between_calls(change, tmp_path):
    model, step = _made()
    for number, (x, y) in enumerate(_batches(20), 1):
        change(model, number)
        step(x * (torch.nan if number == 19 else 1), y)
    before = [vars(model).copy(), [p.requires_grad for p in model.parameters()]]
    found = tg.bisect(step, directory=tmp_path)
    assert before == [vars(model), [p.requires_grad for p in model.parameters()]]
    assert found is not None
    assert (found.step, found.came_with) == (19, "args[0]")


class Counts(tg.Graph):
    """Its own attributes: one that a user sets, and one that the step moves."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.scale, self.count = model, 1.0, 0
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        self.config.keep_history(40)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        loss = self.model(x).square().mean() * self.scale
        loss.backward()
        return loss


def test_attributes_of_the_graph(tmp_path):
    graph = Counts(nn.Linear(4, 1))
    for number, (x, _) in enumerate(_batches(20), 1):
        graph.scale = 0.5 if number == 11 else graph.scale
        graph(x)
    assert tg.bisect(graph, directory=tmp_path) is None
    assert (graph.count, graph.scale) == (20, 0.5)


@pytest.mark.parametrize("every", [None, 1])
def test_a_step_that_reads_what_is_not_kept(every, tmp_path):
    """A number in a list turns to infinity later: no step had given what it gives now."""
    model, scale = nn.Linear(4, 1), [1.0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * scale[0]
        loss.backward()
        optimizer.step()
        return loss

    step.config.keep_history(40, every=every)
    for x, _ in _batches(12):
        step(x)
    scale[0] = float("inf")
    with pytest.raises(HistoryDiffers, match=r"Step 1 of step_\d+ does not give what"):
        tg.bisect(step, directory=tmp_path)


RATE = [1.0]
"""What no history keeps."""


@pytest.fixture(autouse=True)
def _rate():
    yield
    RATE[0] = 1.0


class Scores(tg.Graph):
    """Returns more than is kept of it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 500)
        self.config.keep_history(40)

    def build(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.model(x) * RATE[0]}


def test_a_large_result_is_kept_as_a_part_and_a_sum(tmp_path):
    graph = Scores()
    for x, _ in _batches(8):
        graph(x)
    record = graph._runner.reruns.history.records[-1]
    assert sum(part.numel() for part in record.gave[0].parts) < 6 * 500
    assert tg.bisect(graph, directory=tmp_path) is None
    RATE[0] = 2.0
    with pytest.raises(HistoryDiffers, match=r"the sum of output\['scores'\] is"):
        tg.bisect(graph, directory=tmp_path)


class Silent(tg.Graph):
    """Returns nothing that tells of its update."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 1)
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.config.keep_history(40)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        (loss * RATE[0]).backward()
        return loss


@pytest.mark.parametrize(("steps", "until"), [(6, None), (7, None), (7, 1)])
def test_a_state_is_bad_only_where_what_came_next_says_so(steps, until, tmp_path):
    graph = Silent()
    for x, _ in _batches(steps):
        graph(x)
    assert tg.bisect(graph, until, directory=tmp_path) is None
    RATE[0] = float("inf")
    with pytest.raises(HistoryDiffers, match=r"Step 2 of Silent_. does not give"):
        tg.bisect(graph, until, directory=tmp_path)


def test_a_last_state_is_bad_only_where_it_is_there(tmp_path):
    graph = Silent()
    graph(_batches(1)[0][0])
    RATE[0] = float("inf")
    with pytest.raises(HistoryDiffers, match="do not lead to the state"):
        tg.bisect(graph, directory=tmp_path)
