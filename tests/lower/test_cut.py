"""Programs cut into regions: the same numbers, the same draws, states written where they live."""

import itertools

import pytest
import torch
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests import support
from tests.parity.models import SHAPES, ConvNet, Matrices, Mlp, setup
from tests.parity.test_optimizers import ELEMENTWISE, MATRICES, batches
from torchgraph.errors import MemoryBudgetWarning
from torchgraph.testing import assert_parity

pytestmark = pytest.mark.usefixtures("interpreted", "doubles")


class Unbiased(ConvNet):
    """The gradient of a bias before a BatchNorm is rounding noise, which Adam makes large."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)


SHAPES[Unbiased] = SHAPES[ConvNet]


@pytest.fixture
def doubles():
    """Rounding, which compiled code may do elsewhere than eager, is far below the tolerance."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def inductor(config):
    config.set_backend("inductor")


def check(model, make, steps=5, configure=inductor):
    data = batches(model, steps)
    return assert_parity(setup(model, make), data, rtol=1e-9, atol=1e-12, configure=configure)


@pytest.mark.parametrize(
    ("name", "model"),
    support.thinned_rows(
        itertools.product(ELEMENTWISE, [Mlp, Unbiased]),
        lambda name, model: model is Mlp or name == "AdamW",
    ),
)
def test_every_optimizer(model, name, interpreted):
    check(model, ELEMENTWISE[name])
    assert interpreted[-1].regions


@pytest.mark.parametrize("name", MATRICES)
def test_muon(name):
    # It iterates in bfloat16: a last bit of float64 may round to another number there.
    half = torch.finfo(torch.bfloat16).eps
    data = batches(Matrices, 3)
    make = setup(Matrices, MATRICES[name])
    assert_parity(make, data, rtol=half, atol=half, configure=inductor)


@pytest.mark.parametrize("model", [Mlp, Unbiased])
def test_without_our_compiled_ops(model, monkeypatch, interpreted):
    monkeypatch.setattr("torchgraph._extension.load", lambda device="cpu": False)
    graph = check(model, lambda p: optim.AdamW(p, lr=0.01))
    (region,) = interpreted[-1].regions
    assert region.inputs[-1].dtype == torch.float64
    source = support.replay_of(graph).executable.source
    assert "copy_" not in source, "parameters and moments are written by the region"


def test_forward_and_backward_are_one_region(interpreted):
    graph = check(Unbiased, lambda p: optim.AdamW(p, lr=0.01))
    assert len(interpreted[-1].regions) == 1
    assert support.replay_of(graph).executable.source.count(" adam_update = ") == 1


def test_draws_stay_outside_and_in_order(interpreted):
    check(Mlp, lambda p: optim.SGD(p, lr=0.1))
    (region,) = interpreted[-1].regions
    assert not region.effects.random


def test_fast_draws_are_inside(interpreted):
    model = Mlp()
    graph = tg.train_step(model, nn.functional.cross_entropy, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("inductor")
    graph.config.set_rng("fast")
    (x, y) = batches(Mlp, 1)[0]
    losses = {graph(x, y).item() for _ in range(6)}
    (region,) = interpreted[-1].regions
    assert region.effects.random
    assert len(losses) == 6
    assert support.replay_of(graph).executable.random


def test_fast_draws_leave_probabilities_alone():
    class Draw(tg.Graph):
        def build(self, x):
            return torch.bernoulli(x)

    graph = Draw()
    graph.config.set_backend("inductor")
    graph.config.set_rng("fast")
    x = torch.tensor([0.0, 1.0, 1.0])
    assert graph(x).tolist() == x.tolist()


def test_deterministic_algorithms_leave_a_chosen_inductor_alone(interpreted):
    torch.use_deterministic_algorithms(True)
    try:
        check(Mlp, lambda p: optim.SGD(p, lr=0.1))
    finally:
        torch.use_deterministic_algorithms(False)
    assert interpreted


@pytest.mark.parametrize("p", [0.2, 0.7])
def test_fast_dropout_keeps_as_many(p):
    class Drop(tg.Graph):
        def build(self, x):
            return nn.functional.dropout(x, p)

    graph = Drop()
    graph.config.set_backend("inductor")
    graph.config.set_rng("fast")
    out = graph(torch.ones(100_000))
    assert (out == 0).double().mean().item() == pytest.approx(p, abs=0.01)
    assert out.max().item() == pytest.approx(1 / (1 - p))


def test_learning_rates_are_no_constants(interpreted):
    def make(parameters):
        return optim.NAdam(parameters, lr=0.05)

    def schedule(optimizer):
        return optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    assert_parity(
        setup(Mlp, make, schedule),
        batches(Mlp, 6),
        rtol=1e-9,
        atol=1e-12,
        configure=inductor,
    )
    assert len(interpreted) == 1


def test_accumulation(interpreted):
    torch.manual_seed(0)
    models = [Unbiased(), Unbiased()]
    models[1].load_state_dict(models[0].state_dict())
    graphs = []
    for model, backend in zip(models, ("inductor", "aten"), strict=True):
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        graph = tg.train_step(model, nn.functional.cross_entropy, optimizer)
        graph.config.set_backend(backend)
        graph.config.set_gradient_accumulation_steps(2)
        graphs.append(graph)
    x, y = torch.randn(6, 2, 6, 6), torch.randint(0, 3, (6,))
    for _ in range(4):
        torch.testing.assert_close(graphs[0](x, y), graphs[1](x, y))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert len(interpreted[-1].regions) >= 2


class Returns(tg.Graph):
    """A parameter as it was before the update, and a view of it."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        return self.model.weight, self.model.weight.t(), loss * 2, loss


def test_a_returned_parameter_is_the_old_one():
    model = nn.Linear(3, 2)
    graph = Returns(model, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("inductor")
    for _ in range(3):
        before = model.weight.detach().clone()
        weight, turned, double, loss = graph(torch.randn(4, 3))
        assert torch.equal(weight, before)
        assert torch.equal(turned, before.t())
        assert torch.equal(double, loss * 2)
        assert not torch.equal(model.weight, before)


def test_writes_raise_version_counters(monkeypatch):
    monkeypatch.setattr("torchgraph._extension.load", lambda device="cpu": False)
    model = nn.Linear(3, 2)
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("inductor")
    graph(torch.randn(4, 3), torch.randn(4, 2))
    kept = model(torch.ones(1, 3, requires_grad=True)).sum()
    graph(torch.randn(4, 3), torch.randn(4, 2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_a_mutated_input_is_written():
    class Mutates(tg.Graph):
        def build(self, x):
            x.mul_(2)
            return x + 1

    graph = Mutates()
    graph.config.set_backend("inductor")
    x = torch.arange(4.0)
    out = graph(x)
    assert x.tolist() == [0, 2, 4, 6]
    assert out.tolist() == [1, 3, 5, 7]


def test_what_is_recomputed_is_compiled_apart_from_the_first_time(interpreted):
    def configure(config):
        config.set_backend("inductor")
        config.set_activation_checkpointing(0.01)

    with pytest.warns(MemoryBudgetWarning):
        check(Mlp, lambda p: optim.AdamW(p, lr=0.01), configure=configure)
    regions = interpreted[-1].regions
    softmaxes = [str(region.gm.graph).count("aten._log_softmax.default") for region in regions]
    assert softmaxes[:2] == [1, 1]


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_what_torchs_checkpoint_recomputes_is_compiled_apart(interpreted, rate):
    class Checkpointed(Mlp):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(rate)

        def body(self, x):
            return self.drop(torch.relu(self.first(x)))

        def forward(self, x):
            return self.second(checkpoint(self.body, x, use_reentrant=False))

    SHAPES[Checkpointed] = SHAPES[Mlp]
    check(Checkpointed, lambda p: optim.SGD(p, lr=0.01))
    relus = [str(region.gm.graph).count("aten.relu.default") for region in interpreted[-1].regions]
    assert relus == [1, 1]


@torch.library.custom_op("torchgraph_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


doubled.register_autograd(lambda ctx, gradient: gradient * 2)


class Doubles(Mlp):
    def forward(self, x):
        return super().forward(doubled(x))


SHAPES[Doubles] = SHAPES[Mlp]


def test_ops_of_the_users_stay_outside(interpreted):
    """The process that compiles has not run the script that defines them."""
    check(Doubles, ELEMENTWISE["AdamW"])

    texts = [str(region.gm.graph) for region in interpreted[-1].regions]
    assert texts
    assert not any("torchgraph_tests" in text for text in texts)
