"""Tensors that a step keeps in memory which was there before: of parameters, buffers, arguments."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchgraph as tg
from tests.contract.models import same, snapshot
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters


class SharpnessAware(torch.optim.Optimizer):
    """SAM (Foret et al., 2021), in the way that gives ``p.data`` the memory of a copy."""

    def __init__(self, parameters: Any, base: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        norms = [p.grad.norm() for group in self.param_groups for p in group["params"]]
        norm = torch.stack(norms).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base.step()
        self.zero_grad()


def sharpness_aware() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = SharpnessAware(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.first_step()
        F.mse_loss(model(x), y).backward()
        optimizer.second_step()
        return loss

    return model, optimizer, step


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(3)
    return [
        (torch.randn(6, 4, generator=source), torch.randn(6, 1, generator=source))
        for _ in range(count)
    ]


def test_parameters_that_are_given_back_the_memory_they_were_copied_to():
    model, optimizer, step = sharpness_aware()
    twin, other, eager = sharpness_aware()
    graphed = tg.step(step)
    saved = None
    before = counters.replays
    for number, batch in enumerate(batches(12)):
        if number == 4:
            saved = copy.deepcopy(model.state_dict())
        if number == 8:
            model.load_state_dict(saved)
            twin.load_state_dict(copy.deepcopy(saved))
        assert torch.equal(graphed(*batch), eager(*batch))
        assert same(snapshot(model, optimizer), snapshot(twin, other))
        for p in model.parameters():
            old = optimizer.state[p]["old_p"]
            assert old.data_ptr() == p.data_ptr()
            assert not old.requires_grad
    assert counters.replays - before >= 8


def keeps(what: str) -> Any:
    """A step that keeps a part of ``what`` in an attribute."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    model.register_buffer("total", torch.zeros(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = SimpleNamespace(last=None)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.total += 1
        held.last = {
            "parameter": model.weight,
            "rows": model.weight.detach()[1:],
            "buffer": model.total[0],
            "argument": x[:, -1],
            "pair": (model.weight.data.T, x),
        }[what]
        return loss

    return model, held, step


@pytest.mark.parametrize("what", ["parameter", "rows", "buffer", "argument", "pair"])
def test_what_is_kept_is_seen_to_change_with_its_memory(what):
    model, held, step = keeps(what)
    twin, other, eager = keeps(what)
    graphed = tg.step(step)
    before = counters.replays
    for batch, _ in batches(8):
        mine, its = batch.clone(), batch.clone()
        assert torch.equal(graphed(mine), eager(its))
        for x, one in ((mine, model), (its, twin)):
            with torch.no_grad():  # seen through it
                x.mul_(2)
                one.weight.add_(0.5)
                one.total.add_(0.5)
        assert same(list(parts(held.last)), list(parts(other.last)))
        assert (held.last is model.weight) is (what == "parameter")
    assert counters.replays - before >= 4


def test_a_kept_view_of_an_argument_is_read_after_the_next_is_written():
    """The next argument may be the same tensor, or another one."""

    def make() -> Any:
        held = {"last": torch.zeros(4)}

        def step(x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            found = x + held["last"]
            held["last"] = x[0]
            return found

        return step

    graphed, eager = tg.step(make()), make()
    graphed.config.set_fallback("eager")
    first, second = ([batch.clone() for batch, _ in batches(3)] for _ in range(2))
    for number in (0, 0, 0, 0, 1, 2, 0, 0, 1, 1, 1, 1, 2, 0, 2):
        assert torch.equal(graphed(first[number]), eager(second[number]))


def parts(value: Any) -> Any:
    for tensor in value if isinstance(value, tuple) else (value,):
        yield tensor.detach().clone()
        yield (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def test_each_tensor_of_a_dict_that_is_filled_anew_has_a_name_of_its_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    anchors = {name: p.detach().clone() for name, p in model.named_parameters()}

    @tg.step
    def graphed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _anchored(model, optimizer, anchors, x, y)

    before = counters.replays
    for number, batch in enumerate(batches(16)):
        if number in (5, 10):
            anchors.update({name: p.detach().clone() for name, p in model.named_parameters()})
        twin, other = copy.deepcopy((model, optimizer))
        assert torch.equal(graphed(*batch), _anchored(twin, other, anchors, *batch))
        assert same(snapshot(model), snapshot(twin))
    assert counters.replays - before >= 8


def _anchored(model: Any, optimizer: Any, anchors: Any, x: Any, y: Any) -> torch.Tensor:
    loss = F.mse_loss(model(x), y)
    for name, p in model.named_parameters():
        loss = loss + ((p - anchors[name]) ** 2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def test_a_conjugate_view_of_an_argument_is_kept_as_one():
    def make() -> Any:
        held = SimpleNamespace(last=None)

        def step(x: torch.Tensor) -> torch.Tensor:
            held.last = x.mH
            return x * 2

        return step, held

    (step, mine), (eager, its) = make(), make()
    graphed = tg.step(step)
    graphed.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="was there before"):
        found = [(graphed(x), mine.last) for x in complex_batches()]
    for (got, last), x in zip(found, complex_batches(), strict=True):
        assert torch.equal(got, eager(x))
        assert last.is_conj() is its.last.is_conj()
        assert torch.equal(last, its.last)


def complex_batches() -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(2)
    return [torch.randn(2, 3, dtype=torch.complex64, generator=source) for _ in range(6)]


def test_a_view_that_torch_has_given_up_is_no_obstacle():
    """It was written under no_grad: to ask whether it is a leaf raises."""

    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held = SimpleNamespace(row=None)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                held.row = model.weight[0]
                held.row.div_(held.row.norm())
            return loss.detach()

        return step, model

    (step, mine), (eager, its) = make(), make()
    graphed = tg.step(step)
    graphed.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="was there before"):
        found = [graphed(x) for x, _ in batches(6)]
    assert same(found, [eager(x) for x, _ in batches(6)])
    assert same(snapshot(mine), snapshot(its))
