"""set_grad_scaler: the numbers of an eager loop with the same scaler, skipped steps included."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.features.scaling import (
    Train,
    assert_same,
    batches,
    follow,
    found_inf,
    scaler,
    sides,
    weighted_loss,
)
from tests.parity.models import ConvNet, Mlp
from tests.support import thinned_rows
from torchgraph.passes.fusions.model_update import rule as model_update
from torchgraph.testing import counters


def clipped(p):
    return [{"params": list(p), "clip_grad_max_norm": 0.05}]


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW, foreach": lambda p: optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW, clipped": lambda p: optim.AdamW(clipped(p), lr=0.01),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9),
    "ASGD": lambda p: optim.ASGD(p, lr=0.01),
}
MORE = {
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "SGD, lr a tensor": lambda p: optim.SGD(p, lr=torch.tensor(0.1)),
    "LAMB": lambda p: tg.optim.LAMB(p, lr=0.01),
    "Lion": lambda p: tg.optim.Lion(p, lr=0.01),
}
FUSED = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, fused=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "AdamW, clipped": lambda p: optim.AdamW(clipped(p), lr=0.01, fused=True),
}


_HALF_TWICE = Mlp, torch.float16, 2
_HOWS = [(Mlp, None, 1), _HALF_TWICE, (ConvNet, torch.float16, 1), (ConvNet, None, 2)]


@pytest.mark.parametrize(
    ("name", "model", "amp", "k"),
    thinned_rows(
        ((name, *how) for name in OPTIMIZERS for how in _HOWS),
        lambda name, *how: how == _HALF_TWICE or name == next(iter(OPTIMIZERS)),
    ),
)
def test_steps_are_bitwise_eagers(name, model, amp, k):
    mine, other = sides(model, OPTIMIZERS[name], amp=amp, k=k)
    follow(mine, other, batches(model, 9, infinite=(0, 4)))

    assert mine.lr_sch.last_epoch == 7


@pytest.mark.parametrize("name", MORE)
def test_other_optimizers(name):
    mine, other = sides(Mlp, MORE[name])
    follow(mine, other, batches(Mlp, 9, infinite=(0, 3, 6)))


@pytest.mark.parametrize(("amp", "k"), [(None, 1), (torch.float16, 2)])
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("form", ["captured", "fused", "fused, not compiled"])
def test_fused_optimizers_are_bitwise_eagers(form, name, amp, k, monkeypatch):
    if form == "fused, not compiled":
        monkeypatch.setattr(model_update, "has_kernel", lambda *_: False)
    mine, other = sides(Mlp, FUSED[name], amp=amp, k=k)
    if form != "captured":
        mine.step.fuse()
    # Eager's fused optimizers make their state in a skipped first step; torch's SGD leaves its
    # momentum unset there.
    follow(mine, other, batches(Mlp, 8, infinite=(0, 4)), slots=False)

    assert (
        mine.optimizer.state_dict()["state"].keys() == other.optimizer.state_dict()["state"].keys()
    )


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(
    "name", ["SGD, momentum", "AdamW", "AdamW, clipped", "RMSprop", "NAdam", "AdamW, foreach"]
)
def test_fused_updates_of_other_optimizers_are_close(name, k):
    mine, other = sides(Mlp, OPTIMIZERS[name], k=k)
    mine.step.fuse()
    follow(mine, other, batches(Mlp, 8, infinite=(0, 4)), rtol=1e-5)


def test_a_fused_program_hands_the_flag_to_the_update():
    mine, _ = sides(Mlp, FUSED["AdamW"])
    mine.step.fuse()
    for batch in batches(Mlp, 2):
        mine.step(*batch)
    program = mine.step.program
    names = [getattr(node.target, "__name__", "") for node in program.nodes]

    assert names.count("adam_update.default") == 1
    assert "keep.default" not in names


def test_a_skipped_step_leaves_everything_as_it_was():
    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    first, second, infinite = batches(Mlp, 3, infinite=(2,))
    mine.step(*first)
    mine.step(*second)
    before = {name: value.clone() for name, value in mine.model.state_dict().items()}
    slots = [{k: v.clone() for k, v in held.items()} for held in mine.optimizer.state.values()]
    rate = mine.step.last_lr
    mine.step(*infinite)

    assert all(torch.equal(mine.model.state_dict()[name], v) for name, v in before.items())
    for held, expected in zip(mine.optimizer.state.values(), slots, strict=True):
        assert all(torch.equal(held[key], value) for key, value in expected.items())
    assert mine.step.last_lr == rate
    assert mine.scaler.get_scale() == 1500.0


@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW"])
def test_a_skipped_first_step_creates_no_state(name):
    mine, _ = sides(Mlp, OPTIMIZERS[name])
    infinite, first, *others = batches(Mlp, 5, infinite=(0,))
    with counters.expect(captures=1, replays=1):
        mine.step(*infinite)
        assert not mine.optimizer.state
        mine.step(*first)
        assert mine.optimizer.state
        for batch in others:
            mine.step(*batch)


def test_buffers_are_written_by_a_skipped_step():
    mine, _ = sides(ConvNet, OPTIMIZERS["AdamW"])
    mine.step(*batches(ConvNet, 1, infinite=(0,))[0])

    assert mine.model.norm.num_batches_tracked == 1


def test_the_loss_is_unscaled_and_nothing_is_captured_again():
    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    mine.model.eval()
    data = batches(Mlp, 12, infinite=(5, 6))
    expected = weighted_loss(mine.model, *data[0])
    with counters.expect(captures=1, replays=9):
        losses = [mine.step(*batch) for batch in data]

    assert torch.equal(losses[0], expected.detach())


def test_one_training_run_may_alternate():
    mine, other = sides(Mlp, OPTIMIZERS["SGD, momentum"])
    data = batches(Mlp, 12, infinite=(1, 7, 9))
    eager = type(other.step)(mine.model, mine.optimizer, mine.scaler)
    mine.step._runner.live.schedulers._entries.clear()
    other.step.lr_sch = None
    for number, batch in enumerate(data):
        torch.manual_seed(number)
        (eager if 4 <= number < 8 else mine.step)(*batch)
        torch.manual_seed(number)
        other.step(*batch)

        assert_same(mine, other)


class Two(tg.Graph):
    """Two optimizers; ``which`` of them gets infinite gradients is an input."""

    def __init__(self, models, optimizers, schedulers, grad_scaler):
        super().__init__()
        self.left, self.right = models
        for optimizer, lr_sch in zip(optimizers, schedulers, strict=True):
            self.add_optimizer(optimizer, lr_sch=lr_sch)
        self.set_grad_scaler(grad_scaler)

    def build(self, x, weights):
        return two_losses(self.left, self.right, x, weights, lambda loss: loss)


def two_losses(left, right, x, weights, scale):
    losses = left(x).square().mean() * weights[0], right(x).square().mean() * weights[1]
    scale(losses[0]).backward()
    scale(losses[1]).backward()
    return losses


@pytest.mark.parametrize("second", ["AdamW", "SGD, momentum"])
def test_each_of_two_optimizers_skips_on_its_own(second):
    torch.manual_seed(0)
    runs = []
    for _ in range(2):
        models = [nn.Linear(3, 3), nn.Linear(3, 2)]
        for model, weights in zip(models, runs[0][0] if runs else models, strict=True):
            model.load_state_dict(weights.state_dict())
        made = [
            OPTIMIZERS[n](m.parameters()) for n, m in zip(("AdamW", second), models, strict=True)
        ]
        schedulers = [optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in made]
        runs.append((models, made, schedulers, scaler()))
    (mine, own, rates, held), (models, others, schedulers, other) = runs
    graph = Two(mine, own, rates, held)
    infinite = [(0, 1), (1, 0), (0, 0), (0, 1), (1, 1), (0, 0), (1, 0), (0, 0), (0, 0), (0, 0)]
    for number, pair in enumerate(infinite):
        x = torch.randn(4, 3)
        weights = torch.tensor([torch.inf if hit else 1.0 for hit in pair])
        graph(x, weights)
        two_losses(*models, x, weights, other.scale)
        for optimizer, lr_sch in zip(others, schedulers, strict=True):
            other.step(optimizer)
            if not found_inf(other, optimizer):
                lr_sch.step()
        other.update()
        for optimizer in others:
            optimizer.zero_grad()

        assert held.state_dict() == other.state_dict(), number
        for left, right in zip((*mine, *own, *rates), (*models, *others, *schedulers), strict=True):
            assert str(left.state_dict()) == str(right.state_dict()), number
        for left, right in zip(mine, models, strict=True):
            assert torch.equal(left.weight, right.weight), number


class Counting(optim.Optimizer):
    """Counts its steps in a Python number, and lets its rate depend on it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    parameter.add_(parameter.grad, alpha=-group["lr"] / state["step"])


def test_step_counts_in_python_numbers():
    mine, other = sides(Mlp, lambda p: Counting(p, lr=0.1))
    follow(mine, other, batches(Mlp, 9, infinite=(0, 4)))

    assert {state["step"] for state in mine.optimizer.state.values()} == {7}


def test_a_parameter_that_build_writes_keeps_what_build_wrote():
    class Clamped(Train):
        def build(self, x, y, weight):
            with torch.no_grad():
                self.model.first.weight.clamp_(-0.1, 0.1)
            return super().build(x, y, weight)

    mine, _ = sides(Mlp, OPTIMIZERS["AdamW"])
    graph = Clamped(mine.model, mine.optimizer, mine.scaler)
    expected = mine.model.first.weight.detach().clamp(-0.1, 0.1)
    graph(*batches(Mlp, 1, infinite=(0,))[0])

    assert torch.equal(mine.model.first.weight, expected)


def test_gradients_that_share_memory_are_unscaled_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))
            self.b = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return ((self.a + self.b) * x[:, :3]).cumsum(dim=-1)

    mine, other = sides(Shared, OPTIMIZERS["SGD"])
    follow(mine, other, batches(Mlp, 3))


def test_the_scalers_numbers_may_move():
    mine, other = sides(Mlp, OPTIMIZERS["AdamW"])
    data = batches(Mlp, 10, infinite=(6,))
    with counters.expect(captures=1, replays=7):
        for number, batch in enumerate(data):
            for side in (mine, other):
                side.scaler.set_growth_factor(1.5 if number > 3 else 2.0)
                side.scaler.set_backoff_factor(0.25)
                side.scaler.set_growth_interval(1 if number > 7 else 2)
            follow(mine, other, [batch])


def test_a_scale_set_by_hand_is_used():
    mine, other = sides(Mlp, OPTIMIZERS["AdamW"])
    data = batches(Mlp, 4)
    follow(mine, other, data[:2])
    for side in (mine, other):
        side.scaler.update(77.0)
    follow(mine, other, data[2:])


def test_a_disabled_scaler_does_nothing():
    mine, other = sides(Mlp, OPTIMIZERS["AdamW"])
    mine.step.set_grad_scaler(torch.amp.GradScaler("cpu", enabled=False))
    data = batches(Mlp, 3)
    for number, batch in enumerate(data):
        torch.manual_seed(number)
        mine.step(*batch)
        torch.manual_seed(number)
        weighted_loss(other.model, *batch).backward()
        other.optimizer.step()
        other.optimizer.zero_grad()
        other.lr_sch.step()
    assert_same(mine, other)
    assert not [spec for spec in mine.step.program.signature.inputs if "scaler" in spec.fqn]


def test_another_scaler_and_none():
    mine, other = sides(Mlp, OPTIMIZERS["SGD"])
    data = batches(Mlp, 4)
    follow(mine, other, data[:1])
    for side in (mine, other):
        side.scaler = scaler(init_scale=64.0)
    mine.step.set_grad_scaler(mine.scaler)
    other.step.scaler = other.scaler
    follow(mine, other, data[1:3])
    mine.step.set_grad_scaler(None)
    mine.step(*data[3])

    assert mine.scaler.state_dict() == other.scaler.state_dict()


def test_a_static_scaler():
    mine, other = sides(Mlp, OPTIMIZERS["AdamW"])
    static = tg.amp.StaticGradScaler(3000.0)
    mine.step.set_grad_scaler(static)
    data = batches(Mlp, 4)
    for number, batch in enumerate(data):
        static.scale_factor = scale = 3000.0 if number < 2 else 5.0
        torch.manual_seed(number)
        mine.step(*batch)
        torch.manual_seed(number)
        (weighted_loss(other.model, *batch) * scale).backward()
        for parameter in other.model.parameters():
            parameter.grad.mul_(1 / scale)
        other.optimizer.step()
        other.optimizer.zero_grad()
        other.lr_sch.step()
    assert_same(mine, other)
    with pytest.raises(ValueError, match="scale_factor must"):
        tg.amp.StaticGradScaler(0.0)


def test_a_static_scaler_does_not_look():
    mine, _ = sides(Mlp, OPTIMIZERS["SGD"])
    mine.step.set_grad_scaler(tg.amp.StaticGradScaler(8.0))
    mine.step(*batches(Mlp, 1, infinite=(0,))[0])

    assert mine.model.first.weight.isnan().any()
