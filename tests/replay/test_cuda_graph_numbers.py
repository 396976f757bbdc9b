"""Replayed steps train as eager does: numbers reach the device, draws are eager's."""

import itertools

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import ConvNet, Mlp, batches, setup
from tests.parity.test_optimizers import ELEMENTWISE
from torchgraph.testing import assert_parity, counters

pytestmark = pytest.mark.usefixtures("without_looks")


class Unbiased(ConvNet):
    """The gradient of a bias before a BatchNorm is rounding noise, which Adam makes large."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)


WAITS = ("Adafactor", "Adafactor, decay", "Adafactor, maximize")
"""Its step reads norms of the parameters on the host."""


@pytest.fixture
def doubles():
    """The order of roundings, which is another here than in eager, is far below the tolerance."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def required(config):
    config.set_cuda_graph("require")


def check(make, data, configure=required, rtol=1e-9):
    return assert_parity(make, data, rtol=rtol, atol=rtol / 1000, configure=configure)


@pytest.mark.usefixtures("doubles", "recording")
@pytest.mark.parametrize(
    ("name", "model"),
    support.thinned_rows(
        itertools.product([name for name in ELEMENTWISE if name not in WAITS], [Mlp, Unbiased]),
        lambda name, model: model is Mlp or name == "AdamW",
    ),
)
def test_every_optimizer(model, name):
    data = batches(ConvNet if model is Unbiased else model, 11)
    # These have two programs for many steps each.
    with counters.expect(graph_captures=2 if name.startswith(("RAdam", "ASGD,")) else 1):
        check(setup(model, ELEMENTWISE[name]), data)


@pytest.mark.usefixtures("doubles", "recording")
@pytest.mark.parametrize("name", ["SGD", "AdamW", "NAdam", "RMSprop", "Adagrad", "Adadelta"])
def test_a_learning_rate_that_moves(name):
    def schedule(optimizer):
        return optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    with counters.expect(captures=1, graph_captures=1, graph_replays=5):
        check(setup(Mlp, ELEMENTWISE[name], schedule), batches(Mlp, 8))


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_in_float32(name):
    """Ten replayed steps within a few units in the last place; dividing by a root enlarges them."""
    check(setup(Mlp, ELEMENTWISE[name]), batches(Mlp, 13), rtol=1e-4)


@pytest.mark.usefixtures("recording")
def test_plain_sgd_is_bitwise_eager():
    check(setup(Mlp, ELEMENTWISE["SGD"]), batches(Mlp, 6), rtol=1e-6)


@pytest.mark.usefixtures("doubles", "recording")
@pytest.mark.parametrize("name", ["SGD, nesterov", "AdamW", "AdamW, amsgrad", "RMSprop, both"])
@pytest.mark.parametrize("verb", ["allow_fuse_model_update_ops", "enable_multi_tensor_update"])
def test_fused_updates_take_their_numbers_as_tensors(name, verb):
    def configure(config):
        required(config)
        getattr(config, verb)()

    def schedule(optimizer):
        return optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    graph = check(setup(Mlp, ELEMENTWISE[name], schedule), batches(Mlp, 9), configure)
    assert "_update_" in support.replay_of(graph).executable.source


LISTS = {
    "AdamW, foreach": lambda p: optim.AdamW(p, lr=0.05, foreach=True),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.05, fused=True),
    "Adam, fused amsgrad": lambda p: optim.Adam(p, lr=0.05, fused=True, amsgrad=True),
    "Adadelta, foreach": lambda p: optim.Adadelta(p, lr=0.5, foreach=True, weight_decay=0.1),
    "Adagrad, foreach": lambda p: optim.Adagrad(p, lr=0.1, foreach=True, lr_decay=0.1),
    "Adagrad, fused": lambda p: optim.Adagrad(p, lr=0.1, fused=True, lr_decay=0.1),
    "Adamax, foreach": lambda p: optim.Adamax(p, lr=0.05, foreach=True),
    "NAdam, foreach": lambda p: optim.NAdam(p, lr=0.05, foreach=True, weight_decay=0.1),
    "RMSprop, foreach": lambda p: optim.RMSprop(p, lr=0.01, foreach=True, momentum=0.9),
    "SGD, foreach": lambda p: optim.SGD(p, lr=0.1, foreach=True, momentum=0.9, weight_decay=0.1),
    "SGD, fused": lambda p: optim.SGD(p, lr=0.1, fused=True, momentum=0.9, nesterov=True),
    "SGD, fused plain": lambda p: optim.SGD(p, lr=0.1, fused=True, maximize=True),
}


@pytest.mark.usefixtures("doubles", "recording")
@pytest.mark.parametrize("name", LISTS)
def test_steps_over_lists_of_parameters(name):
    def schedule(optimizer):
        return optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    with counters.expect(graph_captures=1):
        check(setup(Mlp, LISTS[name], schedule), batches(Mlp, 9))


@pytest.mark.usefixtures("doubles", "recording")
def test_the_inductor_backend(interpreted):
    def configure(config):
        required(config)
        config.set_backend("auto", switch_at=6)  # after two recorded ones and four on aten

    # The first compiled call is confirmed, op by op.
    with counters.expect(graph_captures=2, graph_replays=3 + 3):
        check(setup(Mlp, ELEMENTWISE["AdamW"]), batches(Mlp, 11), configure)
    assert len(interpreted[-1].regions) == 1


@pytest.mark.usefixtures("recording")
def test_dropout_draws_what_eager_draws():
    class Drop(tg.Graph):
        def build(self, x):
            return nn.functional.dropout(x, 0.5), torch.rand_like(x)

    graph = Drop()
    x = torch.ones(50)
    torch.manual_seed(3)
    expected = [(nn.functional.dropout(x, 0.5), torch.rand_like(x)) for _ in range(7)]
    torch.manual_seed(3)
    for dropped, drawn in expected:
        got = graph(x)
        assert torch.equal(got[0], dropped)
        assert torch.equal(got[1], drawn)
    torch.manual_seed(3)  # a seed is used by the next replay
    assert torch.equal(graph(x)[0], expected[0][0])
