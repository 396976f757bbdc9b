"""Submodules and ops that are not plain: compiled, custom, under vmap, lazy, of inference mode."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from tests.cases.plays import Play, singles
from tests.cases.table import Table
from tests.contract.models import Function, Net, adam, data, same
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters

LIBRARY = torch.library.Library("torchgraph_submodules", "DEF")
LIBRARY.define("scaled(Tensor x, float factor) -> Tensor")
LIBRARY.impl("scaled", lambda x, factor: x * factor, "CPU")
LIBRARY.define("parts(Tensor x) -> (Tensor, Tensor[])")
LIBRARY.impl("parts", lambda x: (x + 1, [x * 2, x[:1] * 3]), "CPU")
LIBRARY.define("positive(Tensor x) -> Tensor")
LIBRARY.impl("positive", lambda x: x[x > 0], "CPU")
LIBRARY.define("double_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("double_", lambda x: x.mul_(2), "CPU")
ours = torch.ops.torchgraph_submodules
case = Table(fallback="eager")


@torch.library.custom_op("torchgraph_submodules::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 3)


triple.register_autograd(lambda _, gradient: gradient * 3)


@torch.library.custom_op("torchgraph_submodules::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(_, x):  # noqa: ANN205  # as torch.autograd has it
        return ours.scaled(x, 2.5)

    @staticmethod
    def backward(_, gradient):  # noqa: ANN205  # as torch.autograd has it
        return ours.scaled(gradient, 2.5)


def trained(
    build: Callable[[Any, torch.Tensor], torch.Tensor], make: Callable[[], nn.Module] = Net
) -> Play:
    model = make()
    optimizer = adam(model)

    def step(x):
        optimizer.zero_grad()
        loss = build(model, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer], calls=singles(7))


# --- custom ops -----------------------------------------------------------------------------------


def two_parts(model, batch):
    hidden = model(batch)
    whole, (double, row) = ours.parts(hidden.detach())
    return hidden * whole + double + row


def written(model, batch):
    hidden = model(batch)
    return hidden * ours.double_(hidden.detach().clone())


def by_data(model, batch):
    return model(batch) * ours.positive(model.first(batch).detach().abs()).sum()


case.rows(
    {
        "custom_op": lambda: trained(lambda model, batch: triple(model(batch))),
        "of_a_library": lambda: trained(lambda model, batch: Scaled.apply(model(batch))),
        "several_results": lambda: trained(two_parts),
        "sizes_from_data": lambda: trained(by_data),
    },
    forms="graph",
    served=5,
)
case(
    lambda: trained(written),
    name="one_that_writes",
    forms="graph",
    serves=True,
)
case(
    lambda: trained(lambda model, batch: noisy(model(batch).detach()) * model(batch)),
    name="one_that_draws",
    forms="graph",
    served=0,
    says="does not say so",
)


# --- vmap -----------------------------------------------------------------------------------------


class Ensemble(nn.Module):
    """Parameters of several models, stacked."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 4))
        self.bias = nn.Parameter(torch.randn(3, 2))
        self.one = [nn.Linear(4, 2, device="meta")]

    def forward(self, x):
        def run(weight, bias, x):
            return functional_call(self.one[0], {"weight": weight, "bias": bias}, (x,))

        return vmap(run, (0, 0, None))(self.weight, self.bias, x)


def three() -> nn.Module:
    return nn.ModuleList([nn.Linear(4, 2, bias=False) for _ in range(3)])


def stacked(models, batch):
    weights = torch.stack([model.weight for model in models])
    return vmap(lambda weight: batch @ weight.T)(weights)


case.rows(
    {
        "ensembles": lambda: trained(lambda model, batch: model(batch), Ensemble),
        "modules_stacked_in_the_step": lambda: trained(stacked, three),
    },
    forms="graph",
    served=5,
)


# --- generators, inference ------------------------------------------------------------------------


def drawn(draw: Callable[[], torch.Tensor]) -> Play:
    return trained(lambda model, batch: model(batch) * draw())


def forked_and_seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.rand(5, 2)
    return noise * torch.rand(5, 2)


case(
    lambda: drawn(lambda: torch.empty(5, 2).normal_(generator=torch.default_generator)),
    name="filled_by_the_default_generator",
    forms="graph",
    served=5,
)
case(
    lambda: drawn(forked_and_seeded),
    name="forked_and_seeded",
    forms="graph",
    served=0,
    says="fork_rng",
)
case(
    lambda: drawn(lambda: torch.rand(5, 2, generator=torch.Generator().manual_seed(5))),
    name="a_generator_made_in_build",
    forms="graph",
    served=0,
    says="Generator of its own",
)


class Steady(nn.Linear):
    """With a buffer that was made in inference mode."""

    def __init__(self):
        super().__init__(4, 2)
        with torch.inference_mode():
            self.register_buffer("shift", torch.ones(2) * 2)

    def forward(self, x):
        return super().forward(x) + self.shift


@case(forms="graph", least=3)
def inference_tensors_as_buffers_and_as_arguments():
    model, numbers = Steady(), iter(range(9))

    def around(call):
        with torch.inference_mode(next(numbers) < 5), torch.no_grad():
            return call()

    with torch.inference_mode():
        calls = singles(9)
    return Play(lambda x: model(x), [model], calls=calls, around=around)


@pytest.mark.filterwarnings("ignore:Linear is called in a nn.Graph")
@pytest.mark.parametrize("case", case)
def test_submodules(case):
    case.check()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_in_build():
    def build(batch):
        with torch.autograd.detect_anomaly():
            loss = model(batch).square().mean()
            loss.backward()
        return loss

    model = nn.Linear(4, 2)
    graph = Function(build, adam(model), model=model)
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning, match="anomaly detection"):
        list(map(graph, data(4)))
    nan = data()[0] * float("nan")
    with (
        pytest.raises(RuntimeError, match="nan"),
        pytest.warns(UserWarning, match="Error detected"),
    ):
        graph(nan)


# --- torch.compile --------------------------------------------------------------------------------


def never(graph_module, inputs):
    raise AssertionError("compiled")


def in_place(model):
    model.compile(backend=never)
    return model


def double(x):
    return torch.sin(x) * 2


COMPILED = {
    "a module": lambda model: torch.compile(model, backend=never),
    "in place": in_place,
    "a part": lambda model: nn.Sequential(torch.compile(model, backend=never), nn.Linear(2, 2)),
}
PLAIN = {"a part": lambda model: nn.Sequential(model, nn.Linear(2, 2))}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_modules_run_uncompiled(name):
    graphs, models = [], []
    for wrap in (COMPILED[name], PLAIN.get(name, lambda model: model)):
        torch.manual_seed(0)
        model = wrap(Net())

        def build(batch, model=model):
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        graph = Function(build, adam(model), model=model)
        torch.manual_seed(1)
        with counters.expect(replays=4):
            graphs.append([graph(batch) for batch in data(6)])
        models.append(list(model.parameters()))
    assert same(*graphs)
    assert same(*models)


class Spy:
    """A backend that counts what it compiles, and the runs of that."""

    def __init__(self):
        self.compiled = self.runs = 0

    def __call__(self, graph_module, inputs):
        def run(*args: Any) -> object:
            self.runs += 1
            return graph_module.forward(*args)

        self.compiled += 1
        return run


def test_compiled_functions_run_uncompiled_in_recorded_steps():
    compiled = torch.compile(double, backend=never, fullgraph=True)
    model = nn.Linear(4, 2)
    graph = Function(lambda x: compiled(model(x)), model=model)
    with counters.expect(replays=5):
        assert all(torch.equal(graph(x), double(model(x))) for x in data(7))
    plan = graph.report().backend_plan
    assert re.search(
        r"torch\.compile has compiled \(at test_submodules\.py:\d+\) runs op by op", plan
    )
    graph = Function(lambda x: double(model(x)), model=model)
    for x in data(3):
        graph(x)
    assert "torch.compile" not in graph.report().backend_plan


@pytest.mark.parametrize("trains", [False, True])
def test_compiled_modules_run_compiled_in_steps_that_stay_in_eager(trains):
    """Without graph breaks, though classes of torch are watched in such calls of a Graph."""
    backend = Spy()
    model = torch.compile(Net(), backend=backend, fullgraph=True)
    own = torch.Generator()

    def build(x):
        loss = (model(x) * torch.rand(1, generator=own)).sum()
        if trains:
            loss.backward()
        return loss

    graph = Function(build, *([adam(model)] if trains else ()), model=model)
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning):
        graph(*data())
    assert not backend.compiled
    for x in data(4):
        graph(x)
    assert (backend.compiled, backend.runs) == (1, 4)


@pytest.mark.parametrize("kind", ["custom_op", "library"])
def test_compiled_functions_run_compiled_in_custom_ops(kind):
    """A program calls the op, and its kernel is what it is in eager; looks are no others."""
    backend = Spy()
    compiled = torch.compile(double, backend=backend, fullgraph=True)
    name = f"torchgraph_submodules::compiled_{kind}"
    if kind == "custom_op":

        @torch.library.custom_op(name, mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return compiled(x)
    else:
        LIBRARY.define("compiled_library(Tensor x) -> Tensor")
        LIBRARY.impl("compiled_library", compiled, "CPU")
        op = torch.ops.torchgraph_submodules.compiled_library

    graph = Function(lambda x: op(x) + 1)
    with counters.expect(replays=6):
        assert all(torch.equal(graph(x), double(x) + 1) for x in data(8))
    assert backend.runs >= 8
    assert backend.compiled <= 2  # Dynamo looks at the dispatch keys of a recorded call


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_compiled_functions_of_other_threads_stay_compiled():
    def spy(graph_module, _):
        seen.append(threading.get_ident())
        return graph_module.forward

    seen = []
    compiled = torch.compile(lambda x: x * 2 + 1, backend=spy)

    def build(x):
        thread = threading.Thread(target=compiled, args=(torch.ones(2),))
        thread.start()
        thread.join()
        return compiled(x)

    Function(build)(*data())
    assert seen
    assert threading.get_ident() not in seen
