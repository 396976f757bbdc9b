"""Submodules and ops that are not plain: compiled, custom, under vmap, lazy, of inference mode."""

import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from tests.contract.models import Eval, Function, Net, adam, beside_eager, data, same
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


def compare(build, make=Net, plain=None):
    """Eager beside a Graph, bitwise; how many calls a program served."""

    def trained(result_of):
        def step(model, batch):
            loss = result_of(model, batch).square().mean()
            loss.backward()
            return loss

        return step

    done = beside_eager(
        trained(build),
        make,
        batches=data(7),
        plain=None if plain is None else trained(plain),
        fallback="eager",
    )
    return done.replayed


# --- torch.compile --------------------------------------------------------------------------------


def never(graph_module, inputs):
    raise AssertionError("compiled")


def in_place(model):
    model.compile(backend=never)
    return model


COMPILED = {
    "a module": lambda model: torch.compile(model, backend=never),
    "in place": in_place,
    "a part": lambda model: nn.Sequential(torch.compile(model, backend=never), nn.Linear(2, 2)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_modules_run_uncompiled(name):
    torch.manual_seed(0)
    model = COMPILED[name](Net())
    torch.manual_seed(0)
    twin = Net()
    if name == "a part":
        twin = nn.Sequential(twin, nn.Linear(2, 2))
    graphs = []
    for one in (model, twin):
        optimizer = adam(one)
        torch.manual_seed(1)

        def build(batch, one=one):
            loss = one(batch).square().mean()
            loss.backward()
            return loss

        graph = Function(build, optimizer, model=one)
        replays = counters.replays
        graphs.append([graph(batch) for batch in data(6)])
        assert counters.replays - replays == 4
    assert same(*graphs)
    assert same(list(model.parameters()), list(twin.parameters()))


def test_compiled_functions_run_uncompiled_in_recorded_and_eager_steps():
    def double(x):
        return torch.sin(x) * 2

    compiled = torch.compile(double, backend=never, fullgraph=True)

    def plain(model, batch):
        return double(model(batch))

    assert compare(lambda model, batch: compiled(model(batch)), plain=plain) == 5
    graph = Function(lambda x: compiled(x) * torch.rand(4, generator=torch.Generator()))
    graph.config.set_fallback("eager")
    with pytest.warns(EagerWarning):
        graph(*data())
    graph(*data())


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


# --- custom ops -----------------------------------------------------------------------------------


def two_parts(model, batch):
    hidden = model(batch)
    whole, (double, row) = ours.parts(hidden.detach())
    return hidden * whole + double + row


OPS = {
    "custom_op": lambda model, batch: triple(model(batch)),
    "of a library": lambda model, batch: Scaled.apply(model(batch)),
    "several results": two_parts,
    "sizes from data": lambda model, batch: (
        model(batch) * ours.positive(model.first(batch).detach().abs()).sum()
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_custom_ops_without_a_fake_kernel(name):
    assert compare(OPS[name]) == 5


def written(model, batch):
    hidden = model(batch)
    return hidden * ours.double_(hidden.detach().clone())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("build", "why"),
    [
        (written, "no program can be made of it"),
        (lambda model, batch: noisy(model(batch).detach()) * model(batch), "does not say so"),
    ],
)
def test_custom_ops_that_run_in_eager(build, why):
    with pytest.warns(EagerWarning, match=why):
        assert compare(build) == 0


# --- vmap, lazy modules, inference ----------------------------------------------------------------


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


def stacked(models, batch):
    weights = torch.stack([model.weight for model in models])
    return vmap(lambda weight: batch @ weight.T)(weights)


@pytest.mark.filterwarnings("ignore:Linear is called in build")
def test_ensembles_under_vmap():
    assert compare(lambda model, batch: model(batch), make=Ensemble) == 5


def test_modules_stacked_in_the_step():
    def make():
        return nn.ModuleList([nn.Linear(4, 2, bias=False) for _ in range(3)])

    assert compare(stacked, make=make) == 5


class Steady(nn.Module):
    """With a buffer that was made in inference mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        with torch.inference_mode():
            self.register_buffer("shift", torch.ones(2) * 2)

    def forward(self, x):
        return self.linear(x) + self.shift


def test_inference_tensors_as_buffers():
    model = Steady()
    graph = Eval(model)
    with torch.no_grad():
        for batch in data(5):
            assert same(graph(batch), model(batch))


def test_inference_tensors_as_arguments():
    model = nn.Linear(4, 2)
    graph = Eval(model)
    for turn in range(9):
        with torch.inference_mode(), torch.no_grad():
            batch = data(turn + 1)[-1] * 1
            if turn < 5:
                assert same(graph(batch), model(batch))
        if turn >= 5:
            with torch.no_grad():
                assert same(graph(batch), model(batch))


# --- generators -----------------------------------------------------------------------------------


def test_the_default_generator_by_name():
    default = torch.default_generator
    assert compare(lambda model, batch: model(batch) * torch.rand(5, 2, generator=default)) == 5
    assert compare(lambda model, batch: model(batch) * torch.empty(5, 2).normal_(generator=default))


def forked(model, batch):
    hidden = model(batch)
    with torch.random.fork_rng():
        noise = torch.rand_like(hidden)
    return hidden * noise


def forked_and_seeded(model, batch):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.rand(5, 2)
    return model(batch) * noise * torch.rand(5, 2)


@pytest.mark.parametrize("build", [forked, forked_and_seeded])
def test_fork_rng(build):
    with pytest.warns(EagerWarning, match="fork_rng"):
        assert compare(build) == 0


def test_a_generator_made_in_build():
    def build(model, batch):
        generator = torch.Generator().manual_seed(5)
        return model(batch) * torch.rand(5, 2, generator=generator)

    with pytest.warns(EagerWarning, match="Generator of its own"):
        assert compare(build) == 0


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
