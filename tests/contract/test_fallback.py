"""`config.set_fallback`: what cannot be a program is an error early, and eager's on request."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.cases.plays import Play, base, net, of, pairs, singles, trains
from tests.cases.table import Table
from tests.contract.models import (
    Eval,
    Function,
    Net,
    adam,
    beside_eager,
    data,
    same,
    snapshot,
    squared,
)
from tests.support import settle
from torchgraph import errors
from torchgraph.errors import EagerWarning, InvalidOption, NoProgram
from torchgraph.testing import counters

case = Table("step graph", says=None)


# --- what leaves torch, and what may look as if it did --------------------------------------------


class Cube(torch.autograd.Function):
    """By NumPy."""

    @staticmethod
    def forward(ctx, x) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx, gradient) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.from_numpy(3 * x.detach().numpy() ** 2)


class Signs(torch.optim.Optimizer):
    """By NumPy."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            sign = torch.from_numpy(np.sign(parameter.grad.numpy()))
            parameter.sub_(sign * self.param_groups[0]["lr"])


class Tagged(torch.Tensor):
    """Keeps its class through ops."""


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


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(torch.Tensor)


def clamps_a_gradient() -> Play:
    model = net()

    def loss(x, _):
        out = model(x)
        out.register_hook(lambda g: g.clamp(-0.1, 0.1) if g.max() > 0 else None)
        return out.square().mean()

    return trains(model, loss)


def expands(x):
    wide = torch.zeros(1, 4).expand(1, 4)
    return wide.add_(x[:1]).sum() + x.new_zeros(1, 1).expand(2, 1).contiguous().add_(1)


def plays(step: Any) -> Any:
    return lambda: Play(step, calls=singles(6))


def by_signs() -> Play:
    model = net()
    return trains(model, optimizer=Signs(model.parameters()), calls=pairs(6))


@case(refused=errors.DataDependent, forms="graph")
def a_function_over_numpy():
    model = net()
    return trains(model, lambda x, y: Cube.apply(model(x)).mean(), calls=pairs(6))


case.rows(
    {
        "an_optimizer_over_numpy": by_signs,
        "sparse_made_inside": plays(lambda x: (x.relu().to_sparse() * 2).to_dense()),
    },
    refused=NoProgram,
    forms="graph",
)


def multiplied_by_the_next(numbers: Any) -> Any:
    return lambda: Play((lambda given: lambda x: x * next(given))(numbers()), calls=singles(6))


case.rows(
    {
        "bins": plays(lambda x: torch.histc(x, 4)),
        "factors_of_a_generator": multiplied_by_the_next(lambda: (0.9**n for n in range(100))),
        "factors_of_a_counter": multiplied_by_the_next(itertools.count),
        "a_set_of_numbers": lambda: of(
            lambda x, xs: x * sum(xs), lambda n: (base(n), {n // 4, n // 4 + 1}), 12
        ),
        "a_subclass_with_a_dispatch_of_its_own": plays(lambda x: Opaque(x) * 2 + 1),
        "unfilled_memory": plays(
            lambda x: torch.where(x > 0, x, torch.empty(5, 4).mul_(0).nan_to_num_(0).abs_())
        ),
        "expanded_memory_is_written": plays(expands),
        "a_hook_on_a_gradient": clamps_a_gradient,
    },
    forms="graph",
)


@pytest.mark.parametrize("case", case)
def test_each_is_eagers_or_by_default_an_early_error(case):
    case.check()


def tagged() -> nn.Module:
    model = net()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Tagged))
    return model


def test_numbers_of_a_subclass_are_eagers():
    done = beside_eager(lambda model, x: plain(squared(model, x)), tagged)
    assert done.replayed == 4
    graph = Function(lambda x: plain(x * 2) + 1)
    for x in data(6):
        assert same(plain(graph(x.as_subclass(Tagged))), x * 2 + 1)


# --- all that a Graph does, in eager --------------------------------------------------------------


class Escapes(Net):
    """With all that a model may hold, and a factor that numpy computes."""

    def forward(self, x):
        hidden = self.drop(self.norm(self.first(x)))
        return self.second(hidden) * float(hidden.detach().float().numpy().max())


def loss_of(model, x):
    return model(x).square().mean()


def scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", 2.0**127, growth_interval=2, **options)


class Pair:
    """Equal models: one in a Graph with the fallback, one for a plain loop."""

    def __init__(self, decays: bool = False) -> None:
        self.models, self.optimizers = [], []
        for _ in range(2):
            torch.manual_seed(0)
            self.models.append(Escapes())
            self.optimizers.append(adam(self.models[-1]))
        self.schedulers = [
            torch.optim.lr_scheduler.StepLR(one, 2, 0.5) if decays else None
            for one in self.optimizers
        ]
        self.graph = Function(self.build, model=self.models[0])
        self.graph.add_optimizer(self.optimizers[0], lr_sch=self.schedulers[0])
        self.graph.config.set_fallback("eager")
        self.model, self.optimizer = self.models[1], self.optimizers[1]

    def build(self, x):
        loss = loss_of(self.models[0], x)
        loss.backward()
        return loss

    def compare(self, count: int = 6, **options: Any) -> None:
        """The graph beside the plain loop."""
        batches = data(count, rows=6)
        torch.manual_seed(1)
        with pytest.warns(EagerWarning, match=r"numpy.*test_fallback") as told:
            got = [(self.graph(x), snapshot(self.models[0], self.optimizers[0])) for x in batches]
        assert len(told) == 1
        torch.manual_seed(1)
        step, model, optimizer = self.step, self.model, self.optimizer
        assert same(got, [(step(x, **options), snapshot(model, optimizer)) for x in batches])
        calls = self.graph.report().calls
        assert (calls.programs, calls.recorded, calls.eager[0].count) == (0, 0, count)

    def step(self, x, *, clip=None, scaler=None, parts=1, autocast=False):
        losses = []
        scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        for part in x.chunk(parts):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                losses.append(loss_of(self.model, part))
            scaler.scale(losses[-1] / parts).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        if self.schedulers[1]:
            self.schedulers[1].step()
        return torch.stack(losses).detach() if parts > 1 else losses[0].detach()


@pytest.mark.parametrize(
    ("configure", "options"),
    [
        (lambda config: config.set_clip_grad_norm(0.1), {"clip": 0.1}),
        (lambda config: config.set_gradient_accumulation_steps(3), {"parts": 3}),
        (lambda config: config.enable_amp(dtype=torch.bfloat16), {"autocast": True}),
    ],
)
def test_options_and_a_scheduler(configure, options):
    pair = Pair(decays=True)
    configure(pair.graph.config)
    pair.compare(**options)


def test_a_grad_scaler_skips_steps():
    pair, mine, other = Pair(), scaler(), scaler()
    pair.graph.set_grad_scaler(mine)
    pair.compare(8, scaler=other)
    assert mine.state_dict() == other.state_dict()
    assert pair.optimizer.state[pair.model.first.weight]["step"] < 8


def test_hooks_run_at_each_call():
    pair = Pair()
    seen: list[str] = []
    for name, model, optimizer in zip("ab", pair.models, pair.optimizers, strict=True):
        model.first.register_forward_hook(lambda *_, name=name: seen.append(f"{name} forward"))
        optimizer.register_step_post_hook(lambda *_, name=name: seen.append(f"{name} step"))
    pair.compare()
    assert seen == ["a forward", "a step"] * 6 + ["b forward", "b step"] * 6


def test_a_checkpoint_in_the_midst_and_a_step_that_raises():
    pair, later = Pair(), Pair()
    pair.compare()
    later.graph.load_state_dict(pair.graph.state_dict())
    later.model.load_state_dict(pair.model.state_dict())
    later.optimizer.load_state_dict(pair.optimizer.state_dict())
    later.compare()
    before = snapshot(*later.models, *later.optimizers)[1:]
    with pytest.raises(RuntimeError, match="mat1"):
        later.graph(torch.ones(6, 9))
    assert same(before, snapshot(*later.models, *later.optimizers)[1:])


@pytest.mark.parametrize("kind", ["scaled", "accumulated", "SparseAdam"])
def test_sparse_gradients(kind):
    scaled, parts = kind == "scaled", 2 if kind == "accumulated" else 1
    tables = [nn.Embedding(9, 3, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    of_kind = torch.optim.SparseAdam if kind == "SparseAdam" else torch.optim.SGD
    optimizers = [of_kind(table.parameters(), lr=0.1) for table in tables]
    scalers = [torch.amp.GradScaler("cpu", 8.0, growth_interval=2, enabled=scaled) for _ in "ab"]

    def build(x):
        loss = loss_of(tables[0], x)
        loss.backward()
        return loss

    graph = Function(build, optimizers[0], model=tables[0])
    graph.config.set_fallback("eager")
    graph.config.set_gradient_accumulation_steps(parts)
    if scaled:
        graph.set_grad_scaler(scalers[0])

    def step(x):
        for part in x.chunk(parts):
            scalers[1].scale(loss_of(tables[1], part) / parts).backward()
        scalers[1].step(optimizers[1])
        scalers[1].update()
        optimizers[1].zero_grad()

    batches = [torch.randint(9, (6,)) for _ in range(5)]
    words = "SparseAdam" if kind == "SparseAdam" else "sparse_coo"
    with pytest.warns(EagerWarning, match=words) as told:
        got = [(graph(x), snapshot(tables[0]))[1] for x in batches]
    assert len(told) == 1
    assert same(got, [(step(x), snapshot(tables[1]))[1] for x in batches])


def test_an_optimizer_that_asks_for_a_closure():
    model, twin = nn.Linear(4, 2), nn.Linear(4, 2)
    twin.load_state_dict(model.state_dict())
    mine, other = (torch.optim.LBFGS(one.parameters(), max_iter=4) for one in (model, twin))

    def loss(model, optimizer, x):
        optimizer.zero_grad()
        found = loss_of(model, x)
        found.backward()
        return found

    graph = Function(lambda x: loss(model, mine, x), mine, model=model)
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="LBFGS"):
        got = [(graph(x), snapshot(model)) for x in data(4)]
    assert same(
        got, [(other.step(lambda x=x: loss(twin, other, x)), snapshot(twin)) for x in data(4)]
    )


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


def attached(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_()[:2]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("function", "batch"), [(lambda x: x.cos(), attached), (lambda x: x.numpy().sum(), torch.t)]
)
@pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")
def test_after_the_second_call_of_all_none_is_an_error(function, batch, number):
    graph = Function(lambda x: function(x) if len(x) == 2 else x.sin())
    for call in range(6):
        x = torch.ones(call + 3, 2)  # a signature of its own: no program ever serves
        if call != number:
            graph(x)
        elif call < 2:
            with pytest.raises(NoProgram):
                graph(batch(x))
        else:
            graph(batch(x))


def test_the_error_comes_before_anything_has_changed_and_the_mode_may_be_set_after_it():
    pair = Pair()
    pair.graph.config.set_fallback("error")
    before = snapshot(*pair.models, *pair.optimizers)
    for _ in range(3):
        with pytest.raises(errors.DataDependent, match=r"(?s)numpy.*test_fallb.*Or let eager") as e:
            pair.graph(*data())
        assert 'config.set_fallback("eager")' in str(e.value)
    assert same(before, snapshot(*pair.models, *pair.optimizers))
    pair.graph.config.set_fallback("eager")
    pair.compare()


def test_an_error_that_the_users_own_except_swallows_comes_all_the_same():
    def build(x):
        try:
            return torch.from_numpy(x.numpy() + 1)
        except Exception:  # of whatever kind
            return x

    with pytest.raises(errors.DataDependent):
        Function(build)(torch.ones(2))


def test_what_the_update_shows_is_raised_by_the_second_call():
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


def test_arguments_that_cannot_be_bound_are_not_split():
    model = nn.Linear(3, 1)
    graph = Function(lambda x: model(x.to_dense()).sum().backward(), adam(model), model=model)
    graph.config.set_fallback("eager")
    graph.config.set_gradient_accumulation_steps(2)
    with pytest.raises(errors.UnsupportedInput):
        graph(torch.eye(4, 3).to_sparse())


@pytest.mark.parametrize("stepped", ["of the Graph", "of the user"])
def test_an_optimizer_that_build_steps(stepped):
    """Where the Graph accumulates it is an error, fallback or not; a scheduler steps too."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def build(x):
        optimizer.zero_grad()
        loss = (torch.eye(len(x)).to_sparse() @ model(x)).mean()
        loss.backward()
        optimizer.step()
        return loss

    graph = Function(build, model=model)
    graph.add_optimizer(optimizer, lr_sch=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    graph.config.set_fallback("eager")
    if stepped == "of the Graph":
        graph.config.set_gradient_accumulation_steps(5)
        with pytest.raises(errors.OptimizerStepInBuild):
            graph(*data())
    else:
        with pytest.warns(EagerWarning, match="layout"):
            graph(*data())
        graph(*data())
        assert optimizer.param_groups[0]["lr"] == 0.25


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
