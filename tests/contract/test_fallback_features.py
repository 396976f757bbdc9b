"""A step that eager runs inside of a Graph has all that a Graph does: parity with a plain loop."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from tests.contract.models import Eval, Function, adam, data, same, snapshot
from tests.support import settle
from torchgraph import errors
from torchgraph.errors import EagerWarning, InvalidOption, NoProgram
from torchgraph.testing import counters


class Escapes(nn.Module):
    """With all that a model may hold, and a factor that numpy computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.drop, self.second = nn.Dropout(0.3), nn.Linear(6, 2)

    def forward(self, x):
        hidden = self.drop(self.norm(self.first(x)))
        return self.second(hidden) * float(hidden.detach().float().numpy().max())


def loss_of(model, x):
    return model(x).square().mean()


class Pair:
    """Equal models: one in a Graph with the fallback, one for a plain loop."""

    def __init__(self, scheduler: Any = None) -> None:
        self.models, self.optimizers, self.schedulers = [], [], []
        for _ in range(2):
            torch.manual_seed(0)
            self.models.append(Escapes())
            self.optimizers.append(adam(self.models[-1]))
            self.schedulers.append(scheduler and scheduler(self.optimizers[-1]))
        self.graph = Function(self.build, model=self.models[0])
        self.graph.add_optimizer(self.optimizers[0], lr_sch=self.schedulers[0])
        self.graph.config.set_fallback("eager")
        self.model, self.optimizer = self.models[1], self.optimizers[1]

    def build(self, x):
        loss = loss_of(self.models[0], x)
        loss.backward()
        return loss

    def compare(self, step: Any, count: int = 6) -> None:
        """The graph beside ``step(x)``, which makes a step of the other model."""
        batches = data(count, rows=6)
        torch.manual_seed(1)
        with pytest.warns(EagerWarning, match=r"numpy.*test_fallback_features") as told:
            got = [(self.graph(x), snapshot(self.models[0], self.optimizers[0])) for x in batches]
        assert len(told) == 1
        torch.manual_seed(1)
        expected = [(step(x), snapshot(self.model, self.optimizer)) for x in batches]
        assert same(got, expected)
        calls = self.graph.report().calls
        assert (calls.programs, calls.recorded, calls.eager[0].count) == (0, 0, count)

    def step(self, x):
        loss = loss_of(self.model, x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def test_clipping_and_a_scheduler():
    pair = Pair(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    pair.graph.config.set_clip_grad_norm(0.1)

    def step(x):
        loss = loss_of(pair.model, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(pair.model.parameters(), 0.1)
        pair.optimizer.step()
        pair.optimizer.zero_grad()
        pair.schedulers[1].step()
        return loss.detach()

    pair.compare(step)


def test_a_grad_scaler_skips_steps():
    pair = Pair()
    mine, other = (torch.amp.GradScaler("cpu", 2.0**127, growth_interval=2) for _ in range(2))
    pair.graph.set_grad_scaler(mine)

    def step(x):
        loss = loss_of(pair.model, x)
        other.scale(loss).backward()
        other.step(pair.optimizer)
        other.update()
        pair.optimizer.zero_grad()
        return loss.detach()

    pair.compare(step, 8)
    assert mine.state_dict() == other.state_dict()
    assert pair.optimizer.state[pair.model.first.weight]["step"] < 8


def test_accumulation():
    pair = Pair()
    pair.graph.config.set_gradient_accumulation_steps(3)

    def step(x):
        losses = []
        for part in x.chunk(3):
            losses.append(loss_of(pair.model, part))
            (losses[-1] / 3).backward()
        pair.optimizer.step()
        pair.optimizer.zero_grad()
        return torch.stack(losses).detach()

    pair.compare(step)


def test_autocast():
    pair = Pair()
    pair.graph.config.enable_amp(dtype=torch.bfloat16)

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(pair.model, x)
        loss.backward()
        pair.optimizer.step()
        pair.optimizer.zero_grad()
        return loss.detach()

    pair.compare(step)


def test_hooks_run_at_each_call():
    pair = Pair()
    seen: list[str] = []
    for name, model, optimizer in zip("ab", pair.models, pair.optimizers, strict=True):
        model.first.register_forward_hook(lambda *_, name=name: seen.append(f"{name} forward"))
        optimizer.register_step_post_hook(lambda *_, name=name: seen.append(f"{name} step"))
    pair.compare(pair.step)
    assert seen == ["a forward", "a step"] * 6 + ["b forward", "b step"] * 6


def test_a_checkpoint_in_the_midst():
    pair, later = Pair(), Pair()
    pair.compare(pair.step)
    later.graph.load_state_dict(pair.graph.state_dict())
    later.model.load_state_dict(pair.model.state_dict())
    later.optimizer.load_state_dict(pair.optimizer.state_dict())
    later.compare(later.step)


def test_a_step_that_raises_leaves_parameters_and_gradients():
    pair = Pair()
    pair.compare(pair.step)
    before = snapshot(*pair.models, *pair.optimizers)[1:]
    with pytest.raises(RuntimeError, match="mat1"):
        pair.graph(torch.ones(6, 9))
    assert same(before, snapshot(*pair.models, *pair.optimizers)[1:])


@pytest.mark.parametrize("scaled", [True, False])
def test_sparse_gradients_scaled_and_accumulated(scaled):
    tables = [nn.Embedding(9, 3, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [torch.optim.SGD(table.parameters(), lr=0.1) for table in tables]
    scalers = [torch.amp.GradScaler("cpu", 8.0, growth_interval=2) for _ in range(2)]

    def build(x):
        loss = loss_of(tables[0], x)
        loss.backward()
        return loss

    graph = Function(build, optimizers[0], model=tables[0])
    graph.config.set_fallback("eager")
    graph.config.set_gradient_accumulation_steps(1 if scaled else 2)
    if scaled:
        graph.set_grad_scaler(scalers[0])

    def step(x):
        for part in x.chunk(1 if scaled else 2):
            loss = loss_of(tables[1], part)
            (scalers[1].scale(loss) if scaled else loss / 2).backward()
        if scaled:
            scalers[1].step(optimizers[1])
            scalers[1].update()
        else:
            optimizers[1].step()
        optimizers[1].zero_grad()

    batches = [torch.randint(9, (6,)) for _ in range(5)]
    with pytest.warns(EagerWarning, match="sparse_coo") as told:
        got = [(graph(x), snapshot(tables[0]))[1] for x in batches]
    assert len(told) == 1
    assert same(got, [(step(x), snapshot(tables[1]))[1] for x in batches])


class Opaque(torch.Tensor):
    """Has a dispatch of its own."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        out = func(*(a.held if isinstance(a, Opaque) else a for a in args), **(kwargs or {}))
        return Opaque(out) if func is torch.ops.aten.detach.default else out


@pytest.mark.parametrize("place", ["args[0]", "model.weight", "model.scale"])
def test_tensors_with_a_dispatch_of_their_own(place):
    model = nn.Linear(4, 2).requires_grad_(False)
    model.register_buffer("scale", torch.ones(2))
    twin = nn.Linear(4, 2).requires_grad_(False)
    twin.load_state_dict(model.state_dict(), strict=False)
    if place == "model.weight":
        model.weight = nn.Parameter(Opaque(model.weight.detach()), requires_grad=False)
    if place == "model.scale":
        model.scale = Opaque(model.scale)
    graph = Function(lambda x: model(x) * model.scale, model=model)
    batches = data(3)
    given = [Opaque(x) if place == "args[0]" else x for x in batches]
    with pytest.raises(NoProgram, match=rf"{re.escape(place)} is a.* Opaque(?s:.*)set_fallback"):
        graph(given[0])
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="Opaque") as told:
        assert all(torch.equal(graph(x), twin(y)) for x, y in zip(given, batches, strict=True))
    assert len(told) == 1


# --- early and late -------------------------------------------------------------------------------


def test_the_error_comes_before_anything_has_changed():
    pair = Pair()
    pair.graph.config.set_fallback("error")
    before = snapshot(*pair.models, *pair.optimizers)
    for _ in range(3):
        with pytest.raises(errors.DataDependent, match=r"(?s)numpy.*test_fallback_f.*Or let eager"):
            pair.graph(*data())
    assert same(before, snapshot(*pair.models, *pair.optimizers))


def test_an_error_that_the_users_own_except_swallows_comes_all_the_same():
    def build(x):
        try:
            return torch.from_numpy(x.numpy() + 1)
        except Exception:  # of whatever kind
            return x

    with pytest.raises(errors.DataDependent):
        Function(build)(torch.ones(2))


def test_what_the_update_shows_is_raised_by_the_second_call():
    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(torch.from_numpy(parameter.grad.sign().numpy()))

    model = nn.Linear(4, 1)
    graph = Function(lambda x: model(x).sum().backward(), Signs(model.parameters()), model=model)
    graph(*data())
    before = snapshot(model)
    for _ in range(2):
        with pytest.raises(NoProgram, match="numpy"):
            graph(*data())
    assert same(before, snapshot(model))


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("mode", ["error", "eager"])
def test_a_late_surprise_never_raises(mode):
    """Another shape, after programs have served; another way that Python goes."""

    def build(x):
        if len(x) == 3 or x.sum() > 100:
            return torch.from_numpy(x.numpy() * 2)
        return x * 2

    graph = Function(build)
    graph.config.set_fallback(mode)
    settle(graph, torch.ones(2))
    batches = [torch.ones(3), torch.full((2,), 99.0), torch.ones(2), torch.ones(3)]
    with pytest.warns(EagerWarning) as told:
        assert all(torch.equal(graph(x), x * 2) for x in batches)
    assert len(told) == 2  # of two shapes
    with counters.expect(replays=1):
        assert torch.equal(graph(torch.ones(2)), torch.full((2,), 2.0))


def test_the_mode_may_be_set_after_an_error():
    pair = Pair()
    pair.graph.config.set_fallback("error")
    with pytest.raises(NoProgram):
        pair.graph(*data())
    pair.graph.config.set_fallback("eager")
    pair.compare(pair.step)


def test_arguments_that_cannot_be_bound_are_not_split():
    model = nn.Linear(3, 1)
    graph = Function(lambda x: model(x.to_dense()).sum().backward(), adam(model), model=model)
    graph.config.set_fallback("eager")
    graph.config.set_gradient_accumulation_steps(2)
    with pytest.raises(errors.UnsupportedInput):
        graph(torch.eye(4, 3).to_sparse())


def test_errors_that_are_no_matter_of_programs_stay():
    model = nn.Linear(4, 1)
    optimizer = adam(model)

    def build(x):
        model(x).sum().backward()
        optimizer.step()

    graph = Function(build, optimizer, model=model)
    graph.config.set_fallback("eager")
    graph.config.set_gradient_accumulation_steps(5)
    with pytest.raises(errors.OptimizerStepInBuild):
        graph(*data())


def test_the_option():
    graph = Eval(nn.Linear(4, 1))
    assert "fallback" not in repr(graph.config)
    graph.config.set_fallback("eager")
    assert "fallback=eager" in repr(graph)
    for wrong in ("Eager", None, True):
        with pytest.raises(InvalidOption, match="'error' or 'eager'"):
            graph.config.set_fallback(wrong)


def test_the_report_counts_calls_by_how_they_ran():
    graph = Function(lambda x: torch.from_numpy(x.numpy()) if len(x) == 3 else x + 1)
    settle(graph, torch.ones(2))
    with pytest.warns(EagerWarning):
        graph(torch.ones(3))
    for size in (2, 2, 3, 2):
        graph(torch.ones(size))
    calls = graph.report().calls
    assert (calls.programs, calls.recorded) == (4, 2)
    assert [(one.serves, one.count) for one in calls.eager] == [("args[0]: float32[3]", 2)]
    assert "numpy" in calls.eager[0].why
    assert "Calls: 4 by programs, 2 recorded, 2 in eager" in str(graph.report())
