"""What scripts do with parameters that lie in parts: as with DDP, or refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import torchgraph as tg
from tests.distributed import spawn
from torchgraph.errors import GradientNotFinal, NotSupported

pytestmark = pytest.mark.dist
STEPS = 6
CASES: dict[str, Callable[[int], Any]] = {}


def case(function: Callable[[int], Any]) -> Callable[[int], Any]:
    CASES[function.__name__] = function
    return function


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


def batch(rank: int, number: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * number + rank))


def whole(model: nn.Module) -> list[torch.Tensor]:
    held = (p.detach() for p in model.parameters())
    return [p.full_tensor() if isinstance(p, DTensor) else p.clone() for p in held]


def beside_ddp(
    rank: int,
    stage: int,
    prepare: Callable[[nn.Module], Any] = lambda model: None,
    body: Callable[[nn.Module, Any, torch.Tensor, Any], torch.Tensor] | None = None,
    make: Callable[[], nn.Module] = layers,
    **form: bool,
) -> tuple[float, float, int]:
    """By how much losses and parameters differ at most; how many calls programs ran."""
    results, programs = [], 0
    for ours in (True, False):
        model = make()
        kept = prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, **form)
        runs = model if ours else DistributedDataParallel(model, find_unused_parameters=True)

        def step(
            x: torch.Tensor, runs=runs, optimizer=optimizer, kept=kept, model=model
        ) -> torch.Tensor:
            if body is not None:
                return body(runs, optimizer, x, kept)
            optimizer.zero_grad()
            loss = runs(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run: Any = tg.step(step) if ours else step
        if ours:
            run.config.enable_data_parallel()
            run.config.enable_zero(stage > 0, stage=max(stage, 1), shard_min_size=1)
        losses = [run(batch(rank, number)).detach().clone() for number in range(STEPS)]
        results.append((torch.stack(losses), whole(model)))
        programs = run.report().calls.programs if ours else programs
    (losses, parameters), (expected, others) = results
    apart = max(float((a - b).abs().max()) for a, b in zip(parameters, others, strict=True))
    return float((losses - expected).abs().max()), apart, programs


def said(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:  # which one it is, the test asks
        return f"{type(error).__name__}: {error}"
    return ""


# --- the same -------------------------------------------------------------------------------------


def _hooked(model: nn.Module) -> None:
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    model[2].bias.register_post_accumulate_grad_hook(_clamp)


def _clamp(parameter: torch.Tensor) -> None:
    parameter.grad.clamp_(-0.01, 0.01)


def _twice(model: nn.Module, optimizer: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _twice_by_data(model: nn.Module, optimizer: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
    """SAM's way: weights are moved by ``.data`` between two passes."""
    optimizer.zero_grad()
    first = model(x).square().mean()
    first.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        p.data.add_(p.grad, alpha=0.1)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    for p in parameters:
        p.data.mul_(0.99)
    optimizer.step()
    return loss


def _frozen_first(model: nn.Module, optimizer: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
    layer = getattr(model, "module", model)[0]
    for trains in (False, True):
        layer.requires_grad_(trains)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss


def _by_name(model: nn.Module, optimizer: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
    """Gradients that are reached by the names of modules."""
    layers = getattr(model, "module", model)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    layers[0].bias.grad = None
    if layers[2].weight.grad is not None:
        layers[2].weight.grad.mul_(0.1)
    optimizer.step()
    return loss


def _collected(model: nn.Module) -> dict[str, Any]:
    for number, parameter in enumerate(model.parameters()):
        parameter.scale = 1.0 + number  # type: ignore[attr-defined]  # as scripts do
    held = list(model.parameters())
    return {"scales": dict.fromkeys(held[:2], 0.5), "decayed": set(held[2:])}


def _by_parameter(model: nn.Module, optimizer: Any, x: torch.Tensor, kept: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(kept["scales"].get(p, 1.0) * (0.1 if p in kept["decayed"] else p.scale))
    optimizer.step()
    return loss


class OneByTwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))
        self.b = self.a

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.a) @ self.b


class AsksWhatItIs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if isinstance(self.linear.weight, nn.Parameter) else x * 0


SAME: dict[str, dict[str, Any]] = {
    "hooks": {"prepare": _hooked},
    "two updates in a step": {"body": _twice},
    "two updates, foreach": {"body": _twice, "foreach": True},
    "two updates, fused": {"body": _twice, "fused": True},
    "weights moved by data": {"body": _twice_by_data},
    "frozen first": {"body": _frozen_first},
    "gradients by name": {"body": _by_name},
    "dicts, sets and attributes": {"prepare": _collected, "body": _by_parameter},
    "one parameter by two names": {"make": OneByTwoNames},
    "a module that asks": {"make": AsksWhatItIs},
}


@case
def same(rank: int) -> Any:
    pairs = itertools.product(SAME, (1, 2, 3))
    return {(name, stage): beside_ddp(rank, stage, **SAME[name]) for name, stage in pairs}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", SAME)
def test_it_is_as_with_ddp(ranks, name, stage):
    for rank in ranks:
        losses, apart, programs = rank["same"][name, stage]
        # The fused kernel rounds the ends of a tensor otherwise, and parts have other ends.
        most = 1e-6 if "fused" in name else 0
        assert losses <= most
        assert apart <= most
        assert programs >= STEPS - 3


class Experts(nn.Module):
    """Of equal shapes; which one is used follows from the data of each rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.experts = nn.Linear(4, 1), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = int(x.sum().abs() * 7) % 3
        return self.experts[chosen](x) * self.gate(x)


@case
def experts(rank: int) -> Any:
    found = {}
    for stage in (0, 2):
        losses, models = [], []
        for ours in (True, False):
            model = Experts()
            runs: Any = DistributedDataParallel(model, find_unused_parameters=True)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            if ours:
                runs = model
            body = tg.step(loop(runs, optimizer)) if ours else loop(runs, optimizer)
            if ours:
                body.config.enable_data_parallel()
                body.config.enable_zero(stage > 0, stage=max(stage, 1), shard_min_size=1)
            losses.append([body(batch(rank, number)).item() for number in range(24)])
            models.append(whole(model))
        found[stage] = losses[0] == losses[1], all(map(torch.equal, *models)), models[0]
    return found


def loop(model: nn.Module, optimizer: Any) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("stage", [0, 2])
def test_ranks_that_use_other_parameters_average_the_same_ones(ranks, stage):
    for rank in ranks:
        losses, parameters, own = rank["experts"][stage]
        assert losses
        assert parameters
        assert all(map(torch.equal, own, ranks[0]["experts"][stage][2]))


# --- gradients that build reads -------------------------------------------------------------------


class Clipped(tg.Graph):
    def __init__(self, model: nn.Module, stage: int, micro: int = 1) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), 0.1))
        self.config.enable_data_parallel()
        self.config.enable_zero(stage > 0, stage=max(stage, 1), shard_min_size=1)
        self.config.set_gradient_accumulation_steps(micro)

    def build(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss, nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)


@case
def clipped(rank: int) -> Any:
    found: dict[Any, Any] = {}
    for stage in (0, 1, 3):
        model, other = layers(), layers()
        graph, eager = Clipped(model, stage), DistributedDataParallel(other)
        optimizer, norms = torch.optim.SGD(other.parameters(), 0.1), []
        for number in range(STEPS):
            _, norm = graph(batch(rank, number))
            optimizer.zero_grad()
            eager(batch(rank, number)).square().mean().backward()
            expected = nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            optimizer.step()
            norms.append(
                (float(norm.full_tensor() if isinstance(norm, DTensor) else norm), expected)
            )
        found[stage] = norms, whole(model), whole(other)
        graph = Clipped(layers(), stage, micro=3)
        found["accumulated", stage] = said(lambda graph=graph: graph(batch(rank, 0)))
    return found


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_build_clips_the_means(ranks, stage):
    for rank in ranks:
        norms, parameters, others = rank["clipped"][stage]
        assert all(norm == pytest.approx(float(expected), abs=1e-6) for norm, expected in norms)
        torch.testing.assert_close(parameters, others, rtol=0, atol=1e-6 if stage else 0)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_gradients_of_a_micro_batch_are_not_read(ranks, stage):
    for rank in ranks:
        assert rank["clipped"]["accumulated", stage].startswith(GradientNotFinal.__name__)


# --- refused --------------------------------------------------------------------------------------


class Writes(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.linear = how, nn.Linear(4, 4)
        self.table = nn.Embedding(8, 4, max_norm=0.1 if how == "max_norm" else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.linear.weight
        if self.how == "clamp":
            with torch.no_grad():
                weight.clamp_(-0.1, 0.1)
        if self.how == "data.mul":
            weight.data.mul_(0.5)
        if self.how == "data":
            weight.data = weight.data * 0.5
        return self.linear(x + self.table(torch.arange(3)))


HOWS = ("max_norm", "clamp", "data.mul", "data")


@case
def writes(rank: int) -> Any:
    found = {}
    for how in HOWS:
        model = Writes(how)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = tg.step(loop(model, optimizer))
        step.config.enable_zero(True, stage=2, shard_min_size=1)
        found[how] = said(lambda step=step: step(batch(rank, 0)))
    return found


@pytest.mark.parametrize("how", HOWS)
def test_a_write_that_would_be_lost_is_refused(ranks, how):
    for rank in ranks:
        assert rank["writes"][how].startswith(f"{NotSupported.__name__}: ZeRO: the step writes a p")


def every(rank: int) -> dict[str, Any]:
    return {name: function(rank) for name, function in CASES.items()}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return spawn.run(every, 2)
