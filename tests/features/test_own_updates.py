"""What `build` does after backward(), and what step hooks do: averages, targets, gradients."""

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import torchgraph as tg
from tests.features.scaling import found_inf
from tests.features.test_accumulation import batches
from tests.parity.models import ConvNet, Mlp
from torchgraph.testing import counters

AVERAGES: dict[str, Any] = {
    "default": {},
    "default, buffers": {"use_buffers": True},
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
    "ema, buffers": {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "swa": {"multi_avg_fn": get_swa_multi_avg_fn()},
    "own": {"avg_fn": lambda average, new, count: average + (new - average) / (count + 1)},
}


class Train(tg.Graph):
    """One step. ``average`` is an attribute, or in a closure only."""

    def __init__(self, model, optimizer, then=lambda out: None, average=None, scaler=None, k=1):
        super().__init__()
        self.model = model
        if average is not None:
            self.average = average
        self.then = then
        self.add_optimizer(optimizer)
        self.set_grad_scaler(scaler)
        self.config.set_gradient_accumulation_steps(k)

    def build(self, x, y):
        return forward_backward(self.model, x, y, self.then)


def forward_backward(model, x, y, then, scaled=lambda loss: loss):
    out = model(x)
    loss = F.cross_entropy(out, y)
    scaled(loss).backward()
    then(out)
    return loss


def averaged(model, **options: Any):
    torch.manual_seed(0)
    own = model()
    return own, AveragedModel(own, **options)


def sgd(model):
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def assert_equal(got: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(got.state_dict(), expected.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("model", [Mlp, ConvNet])
def test_an_average_in_build_is_of_the_weights_before_the_update(model, name, registered):
    mine, average = averaged(model, **AVERAGES[name])
    other, others = averaged(model, **AVERAGES[name])
    graph = Train(
        mine,
        sgd(mine),
        lambda out: average.update_parameters(mine),
        average if registered else None,
    )
    optimizer = sgd(other)
    with counters.expect(captures=1, replays=7):
        for number, (x, y) in enumerate(batches(model, 10)):
            torch.manual_seed(number)
            got = graph(x, y)
            torch.manual_seed(number)
            loss = forward_backward(other, x, y, lambda out: others.update_parameters(other))
            optimizer.step()
            optimizer.zero_grad()

            assert torch.equal(got, loss.detach())
            assert_equal(mine, other)
            assert_equal(average, others)
    assert average.n_averaged == 10


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", ["default, buffers", "ema"])
@pytest.mark.parametrize("model", [Mlp, ConvNet])
def test_an_average_in_a_step_hook_is_of_the_weights_after_it(model, name, scaled, k):
    sides = []
    for _ in range(2):
        own, average = averaged(model, **AVERAGES[name])
        optimizer = sgd(own)
        optimizer.register_step_post_hook(lambda *_, a=average, m=own: a.update_parameters(m))
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=2, enabled=scaled)
        sides.append((own, average, optimizer, scaler))
    mine, average, optimizer, scaler = sides[0]
    graph = Train(mine, optimizer, average=average, scaler=scaler, k=k)
    other, others, optimizer, scaler = sides[1]
    skipped = 0
    for number, (x, y) in enumerate(batches(model, 10)):
        if scaled and number in (0, 3, 4):
            x[0] = torch.inf
        torch.manual_seed(number)
        graph(x, y)
        torch.manual_seed(number)
        for part, target in zip(x.chunk(k), y.chunk(k), strict=True):
            forward_backward(
                other,
                part,
                target,
                lambda out: None,
                lambda loss: scaler.scale(loss if k == 1 else loss / k),
            )
        scaler.step(optimizer)
        skipped += scaled and found_inf(scaler, optimizer)
        scaler.update()
        optimizer.zero_grad()

        same(mine, other)
        same(average, others)
    assert average.n_averaged == 10 - skipped
    assert skipped == (3 if scaled else 0)


def same(got: nn.Module, expected: nn.Module) -> None:
    """Bitwise; statistics of infinite batches are NaN."""
    torch.testing.assert_close(
        got.state_dict(), expected.state_dict(), rtol=0, atol=0, equal_nan=True
    )


# --- other code after backward() ------------------------------------------------------------------


class Held(nn.Module):
    """A model with what self-supervised methods keep beside it."""

    def __init__(self):
        super().__init__()
        self.model = Mlp()
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(12, 3))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.model(x)


@torch.no_grad()
def running_mean(held, out):
    held.mean.lerp_(held.model.second.bias, 0.1)


@torch.no_grad()
def momentum_target(held, out):
    for target, parameter in zip(held.target.parameters(), held.model.parameters(), strict=True):
        target.mul_(0.99).add_(parameter, alpha=0.01)


@torch.no_grad()
def foreach_target(held, out):
    torch._foreach_lerp_(list(held.target.parameters()), list(held.model.parameters()), 0.1)


@torch.no_grad()
def queue(held, out):
    places = (torch.arange(out.shape[0]) + held.position) % 12
    held.queue[places] = F.normalize(out.detach(), dim=1)
    held.position.copy_((held.position + out.shape[0]) % 12)


@torch.no_grad()
def weight_norm(held, out):
    weight = held.model.first.weight
    weight.div_(weight.norm(dim=1, keepdim=True).clamp(min=1.0))


def projection(held, out):
    held.model.first.weight.data.clamp_(-0.2, 0.2)


@torch.no_grad()
def update_by_hand(held, out):
    for parameter in held.model.first.parameters():
        parameter -= 0.05 * parameter.grad


def gradient_noise(held, out):
    for parameter in held.model.parameters():
        parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.01)


def centralized_gradient(held, out):
    gradient = held.model.first.weight.grad
    gradient.data -= gradient.mean(dim=1, keepdim=True)


def another_gradient(held, out):
    held.model.first.weight.grad = held.model.first.weight.grad * 0.5


def no_gradient(held, out):
    held.model.first.bias.grad = None


def decay_that_warms_up(held, out):
    held.steps += 1
    decay = min(0.99, (1 + held.steps.item()) / (10 + held.steps.item()))
    with torch.no_grad():
        held.mean.mul_(decay).add_(held.model.second.bias, alpha=1 - decay)


def every_third_step(held, out):
    held.steps += 1
    if held.steps % 3 == 0:
        held.target.load_state_dict(held.model.state_dict())


AFTER = [
    running_mean,
    momentum_target,
    foreach_target,
    queue,
    weight_norm,
    projection,
    update_by_hand,
    gradient_noise,
    centralized_gradient,
    another_gradient,
    no_gradient,
    pytest.param(
        decay_that_warms_up,  # a number of a buffer, another one in each call
        marks=[
            pytest.mark.filterwarnings("ignore:The step runs in eager. a value"),
            pytest.mark.filterwarnings("ignore::torchgraph.errors.MovingValue"),
        ],
    ),
    every_third_step,
]


@pytest.mark.parametrize("after", AFTER)
def test_ten_steps_are_bitwise_eagers(after):
    torch.manual_seed(0)
    mine = Held()
    other = copy.deepcopy(mine)
    graph = Train(mine, sgd(mine.model), lambda out: after(mine, out))
    optimizer = sgd(other.model)
    start = copy.deepcopy(mine.state_dict())
    for number, (x, y) in enumerate(batches(Mlp, 10)):
        torch.manual_seed(number)
        got = graph(x, y)
        torch.manual_seed(number)
        loss = forward_backward(other, x, y, lambda out: after(other, out))
        optimizer.step()
        optimizer.zero_grad()

        assert torch.equal(got, loss.detach())
        assert_equal(mine, other)
    assert any(not torch.equal(value, start[name]) for name, value in mine.state_dict().items())


def test_each_side_of_a_branch_on_a_counter_is_captured_once():
    torch.manual_seed(0)
    mine = Held()
    optimizer = optim.AdamW(mine.model.parameters())
    graph = Train(mine, optimizer, lambda out: every_third_step(mine, out))
    with counters.expect(captures=2, replays=5):
        for x, y in batches(Mlp, 9):
            graph(x, y)


def test_a_counter_that_somebody_sets_is_seen():
    torch.manual_seed(0)
    mine = Held()
    graph = Train(
        mine,
        optim.AdamW(mine.model.parameters()),
        lambda out: every_third_step(mine, out),
    )
    target = mine.target.first.weight.detach().clone()
    with counters.expect(replays=3):  # two of one side, one of the other
        for x, y in batches(Mlp, 4):
            graph(x, y)
            assert torch.equal(mine.target.first.weight, target)
            mine.steps.fill_(0)
        for steps in (2, 5, 8):
            mine.steps.fill_(steps)
            before = mine.model.first.weight.detach().clone()
            graph(x, y)
            assert mine.steps == steps + 1
            assert torch.equal(mine.target.first.weight, before)
            assert not torch.equal(mine.model.first.weight, before)


def test_each_side_of_a_branch_on_data_is_a_program():
    torch.manual_seed(0)
    mine = Held()
    other = copy.deepcopy(mine)
    seen = []

    def branch(held, out):
        seen.append(bool(out[0, 0] > 0))
        if seen[-1]:
            held.mean.add_(out.detach().mean(0))

    graph = Train(mine, sgd(mine.model), lambda out: branch(mine, out))
    optimizer = sgd(other.model)
    sides = []
    for number, (x, y) in enumerate(batches(Mlp, 16)):
        torch.manual_seed(number)
        before = counters.replays
        graph(x, y)
        torch.manual_seed(number)
        forward_backward(other, x, y, lambda out: branch(other, out))
        optimizer.step()
        optimizer.zero_grad()
        if counters.replays > before:
            sides.append(seen[-1])
        assert_equal(mine, other)
    assert {True, False} == set(sides)
    assert len(sides) >= 8


def test_buffers_are_averaged_for_each_micro_batch_in_build():
    torch.manual_seed(0)
    mine = Held()
    other = copy.deepcopy(mine)
    graph = Train(mine, sgd(mine.model), lambda out: queue(mine, out), k=2)
    optimizer = sgd(other.model)
    for number, (x, y) in enumerate(batches(Mlp, 6)):
        torch.manual_seed(number)
        graph(x, y)
        torch.manual_seed(number)
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            forward_backward(
                other, part, target, lambda out: queue(other, out), lambda loss: loss / 2
            )
        optimizer.step()
        optimizer.zero_grad()
        assert_equal(mine, other)


def test_a_step_may_read_what_the_micro_batches_left_in_a_buffer():
    class Statistics(optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                with torch.no_grad():
                    parameter -= 0.1 * parameter.grad * self.norm.running_mean.sum()

    sides = []
    for _ in range(2):
        torch.manual_seed(0)
        model = ConvNet()
        optimizer = Statistics(model.parameters(), lr=0.1)
        optimizer.norm = model.norm
        sides.append((model, optimizer))
    (mine, optimizer), (other, others) = sides
    graph = Train(mine, optimizer, k=2)
    for x, y in batches(ConvNet, 5):
        graph(x, y)
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            forward_backward(other, part, target, lambda out: None, lambda loss: loss / 2)
        others.step()
        others.zero_grad()
        assert_equal(mine, other)


def test_an_optimizer_that_a_check_makes_is_gone_with_it():
    class Own(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model, self.held = model, {}

        def build(self, x):
            if not self.held:
                self.held["optimizer"] = sgd(self.model)
            loss = self.model(x).square().mean()
            loss.backward()
            self.held["optimizer"].step()
            self.held["optimizer"].zero_grad()
            return loss

    torch.manual_seed(0)
    graph, x = Own(nn.Linear(3, 2)), torch.randn(4, 3)
    assert graph.check(x) is None
    assert not graph.held
    for _ in range(4):
        graph(x)
    assert len(graph.state_dict()["_train"]["optimizers"]) == 1
