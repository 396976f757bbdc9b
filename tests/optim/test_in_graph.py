"""LAMB and Lion in a Graph: bitwise eager, one program for all steps."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR

import torchgraph as tg
from tests.optim.cases import CASES, make
from tests.parity.models import ConvNet, Mlp, batches, cross_entropy, setup
from tests.parity.test_param_groups import both, clip, grouped
from tests.support import thinned_rows
from torchgraph.testing import Setup, assert_parity, counters

KINDS = pytest.mark.parametrize("kind", [tg.optim.LAMB, tg.optim.Lion])


@pytest.mark.parametrize("model", [Mlp, ConvNet])
@pytest.mark.parametrize("name", CASES)
def test_ten_steps_are_bitwise_eager_in_one_program(name, model):
    with counters.expect(captures=1, replays=8):
        assert_parity(setup(model, make(name)), batches(model, 10))


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned_rows(
        itertools.product(
            ["LAMB, decay", "LAMB, foreach", "Lion, decay", "Lion, foreach"],
            [torch.float64, torch.bfloat16, torch.float16],
        ),
        lambda name, dtype: dtype is torch.bfloat16 or name == "LAMB, foreach",
    ),
)
def test_other_dtypes(name, dtype):
    def fresh():
        model = Mlp().to(dtype)
        loss = lambda m, x, y: cross_entropy(m, x.to(dtype), y)  # noqa: E731
        return Setup(model, make(name)(model.parameters()), loss)

    with counters.expect(captures=1):
        assert_parity(fresh, batches(Mlp, 5))


@pytest.mark.parametrize("name", ["LAMB, decay", "Lion, decay"])
def test_large_and_channels_last_parameters(name):
    class Wide(ConvNet):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 6000, 3, padding=1)  # 108 000 weights
            self.norm = nn.BatchNorm2d(6000)
            self.head = nn.Linear(6000, 3)
            self.to(memory_format=torch.channels_last)

    assert_parity(lambda: setup(Wide, make(name))(), batches(ConvNet, 3))


@KINDS
@pytest.mark.parametrize(
    "schedule",
    [lambda o: ExponentialLR(o, 0.8), lambda o: CyclicLR(o, 0.01, 0.2, step_size_up=3)],
)
def test_a_scheduler_moves_the_lr_and_beta_in_one_program(kind, schedule):
    def make_one(parameters):
        return kind(parameters, lr=0.05, weight_decay=0.1)

    with counters.expect(captures=1, replays=8):
        assert_parity(setup(Mlp, make_one, schedule), batches(Mlp, 10))


@KINDS
def test_groups_with_their_own_settings(kind):
    assert_parity(
        grouped(
            lambda groups: kind(groups, lr=0.01),
            {"lr": 0.1, "betas": (0.5, 0.9)},
            {"weight_decay": 0.2, "maximize": True, "foreach": True},
        ),
        batches(Mlp, 6),
    )


@KINDS
def test_lr_scale_multiplies_the_groups_lr_in_the_graph_only(kind):
    new = both(
        grouped(lambda groups: kind(groups, lr=0.05), {"lr_scale": 0.5}, {}),
        after_backward=lambda groups: groups[0].update(lr=0.05 * 0.5),
    )

    assert new.optimizer.param_groups[0]["lr"] == 0.05


@KINDS
def test_clipping_by_the_keys_of_a_param_group(kind):
    clipped = {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0}

    both(grouped(lambda groups: kind(groups, lr=0.05), clipped, {}), after_backward=clip)


@KINDS
def test_eager_and_graph_take_turns(kind):
    def train(turns):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = kind(model.parameters(), lr=0.05, weight_decay=0.1)
        step = tg.train_step(model, nn.functional.cross_entropy, optimizer)
        for number, (x, y) in enumerate(batches(Mlp, 9)):
            if turns[number // 3] == "graph":
                step(x, y)
            else:
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return [*model.parameters()]

    expected = train(["eager"] * 3)
    for turns in (["eager", "graph", "eager"], ["graph", "eager", "graph"]):
        assert all(torch.equal(a, b) for a, b in zip(expected, train(turns), strict=True))


@KINDS
def test_a_checkpoint_of_the_graph(kind):
    def graph():
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = kind(model.parameters(), lr=0.05)
        return model, tg.train_step(model, nn.functional.cross_entropy, optimizer)

    data = batches(Mlp, 6)
    straight, step = graph()
    for batch in data:
        step(*batch)
    _, first = graph()
    for batch in data[:3]:
        first(*batch)
    resumed, second = graph()
    second.load_state_dict(first.state_dict())
    for batch in data[3:]:
        second(*batch)

    assert torch.equal(straight.weight, resumed.weight)


@KINDS
def test_a_parameter_without_a_gradient_gets_no_slots(kind):
    class Unused(Mlp):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)

    def fresh():
        model = Unused()
        return Setup(model, kind(model.parameters(), weight_decay=0.5), cross_entropy)

    graph = assert_parity(fresh, batches(Mlp, 3))

    assert len(graph._runner.live.optimizers[0].state) == 4


@KINDS
def test_a_subclass_that_makes_its_own_slots(kind):
    """It is no case of its own: the step that makes the slots is recorded, and has no program."""

    class Warm(kind):
        def _first_slots(self, parameter):
            slots = super()._first_slots(parameter)
            slots["exp_avg"] = slots["exp_avg"] + parameter.grad
            return slots

    with counters.expect(captures=1, replays=2):
        assert_parity(setup(Mlp, lambda p: Warm(p, lr=0.05)), batches(Mlp, 5))
