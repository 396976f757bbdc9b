"""Param groups with their own settings, clipping, lr_scale, and settings changed by hand."""

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import ConvNet, Mlp, batches, cross_entropy
from torchgraph.testing import Setup, assert_parity, counters


def grouped(make, *settings: dict):
    """One group per layer of Mlp, with the given settings."""

    def fresh():
        model = Mlp()
        layers = (model.first, model.second)
        groups = [
            {"params": list(layer.parameters()), **own}
            for layer, own in zip(layers, settings, strict=True)
        ]
        return Setup(model, make(groups), cross_entropy)

    return fresh


def train(setup, batches, *, after_backward=lambda groups: None, before_call=lambda n, opt: None):
    """Eager training with a say between backward and step; returns the losses."""
    losses = []
    for number, batch in enumerate(batches):
        before_call(number, setup.optimizer)
        loss = setup.loss(setup.model, *batch)
        loss.backward()
        after_backward(setup.optimizer.param_groups)
        setup.optimizer.step()
        setup.optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def both(make, count=6, **eager: float):
    """The same training eager and through a Graph; asserts that all is bitwise equal."""
    torch.manual_seed(0)
    old = make()
    torch.manual_seed(0)
    new = make()
    data = batches(Mlp, count)
    torch.manual_seed(1)
    expected = train(old, data, **eager)
    step = tg.train_step(new.model, nn.functional.cross_entropy, new.optimizer)
    torch.manual_seed(1)
    got = []
    for number, batch in enumerate(data):
        eager.get("before_call", lambda n, opt: None)(number, new.optimizer)
        got.append(step(*batch))
    assert torch.equal(torch.stack(got), torch.stack(expected))
    for left, right in zip(old.model.parameters(), new.model.parameters(), strict=True):
        assert torch.equal(left, right)
    return new


def test_groups_with_their_own_settings():
    assert_parity(
        grouped(
            lambda groups: optim.AdamW(groups, lr=0.01),
            {"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.0},
            {"eps": 1e-3, "amsgrad": True, "maximize": True},
        ),
        batches(Mlp, 6),
    )
    assert_parity(
        grouped(
            lambda groups: optim.SGD(groups, lr=0.05),
            {"momentum": 0.9, "nesterov": True},
            {"momentum": 0.0, "weight_decay": 0.1},
        ),
        batches(Mlp, 6),
    )


def test_lr_scale_multiplies_the_groups_lr_in_the_graph_only():
    new = both(
        grouped(lambda groups: optim.SGD(groups, lr=0.05), {"lr_scale": 0.5}, {}),
        after_backward=lambda groups: groups[0].update(lr=0.05 * 0.5),
    )

    assert new.optimizer.param_groups[0]["lr"] == 0.05


def test_lr_scale_changed_by_hand_is_used():
    made = grouped(lambda groups: optim.SGD(groups, lr=1.0), {"lr_scale": 0.5}, {})()
    step = tg.train_step(made.model, nn.functional.cross_entropy, made.optimizer)
    batch = batches(Mlp, 1)[0]
    support.settle(step, *batch)
    made.optimizer.param_groups[0]["lr_scale"] = 0.0
    before = made.model.first.weight.detach().clone()

    with counters.expect(captures=0, replays=1):
        step(*batch)

    assert torch.equal(before, made.model.first.weight)


def clip(groups):
    """What OneFlow's keys ask for: each group that has one is clipped by its own norm."""
    for group in groups:
        if "clip_grad_max_norm" in group or "clip_grad_norm_type" in group:
            torch.nn.utils.clip_grad_norm_(
                group["params"],
                group.get("clip_grad_max_norm", 1.0),
                group.get("clip_grad_norm_type", 2.0),
            )


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0},
        {"clip_grad_max_norm": 0.05},
        {"clip_grad_norm_type": 1.0},
        {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": float("inf")},
        {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 3.5},
        {"clip_grad_max_norm": 100.0},
    ],
)
def test_clipping_by_the_keys_of_a_param_group(settings):
    make = grouped(lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9), settings, {})

    both(make, after_backward=clip)


def test_each_group_is_clipped_by_its_own_norm():
    """OneFlow, observed: gradients 3 and 4 in two groups, max_norm 1, lr 1: both weights 1 -> 0."""
    model = nn.Module()
    model.a, model.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    groups = [{"params": [p], "clip_grad_max_norm": 1.0} for p in (model.a, model.b)]

    class Step(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optim.SGD(groups, lr=1.0))

        def build(self):
            loss = (3 * self.model.a + 4 * self.model.b).sum()
            loss.backward()
            return self.model.a.grad, self.model.b.grad

    grads = Step()()

    assert (model.a.item(), model.b.item()) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert [grad.item() for grad in grads] == pytest.approx([1.0, 1.0])  # as the step reads them


def test_the_norm_changed_by_hand_is_used():
    def shrink(number, optimizer):
        optimizer.param_groups[0]["clip_grad_max_norm"] = 0.5 / (1 + number)

    make = grouped(lambda g: optim.SGD(g, lr=0.1), {"clip_grad_max_norm": 1.0}, {})
    with counters.expect(captures=1):
        both(make, after_backward=clip, before_call=shrink)


def test_clipping_called_in_build():
    def step_of(clip):
        class Step(tg.Graph):
            def __init__(self, made):
                super().__init__()
                self.model = made.model
                self.add_optimizer(made.optimizer)

            def build(self, x, y):
                loss = cross_entropy(self.model, x, y)
                loss.backward()
                return loss, clip(self.model.parameters())

        return Step

    for clip_all in (
        lambda p: nn.utils.clip_grad_norm_(p, 0.05),
        lambda p: nn.utils.clip_grad_norm_(p, 0.05, float("inf")),
        lambda p: nn.utils.clip_grad_value_(p, 0.01),
    ):
        make = grouped(lambda g: optim.AdamW(g, lr=0.05), {}, {})
        torch.manual_seed(0)
        old = make()
        torch.manual_seed(0)
        new = make()
        torch.manual_seed(1)
        norms = []

        def note(groups, clip_all=clip_all, norms=norms):
            norms.append(clip_all([p for group in groups for p in group["params"]]))

        expected = train(old, batches(Mlp, 6), after_backward=note)
        step = step_of(clip_all)(new)
        torch.manual_seed(1)
        for batch, loss, norm in zip(batches(Mlp, 6), expected, norms, strict=True):
            got = step(*batch)
            assert torch.equal(got[0], loss)
            assert got[1] is norm is None or torch.equal(got[1], norm)
        for left, right in zip(old.model.parameters(), new.model.parameters(), strict=True):
            assert torch.equal(left, right)


def moving_adam(number, optimizer):
    group = optimizer.param_groups[0]
    group["lr"] = 0.1 / (1 + number)
    group["betas"] = (0.9 - 0.01 * number, 0.99 - 0.02 * number)
    group["weight_decay"] = 0.1 * (1 + number)
    group["eps"] = 1e-8 * (1 + number)


def moving_sgd(number, optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + number)
        group["momentum"] = 0.9 - 0.1 * number
        group["weight_decay"] = 0.1 * (1 + number)
        group["dampening"] = 0.05 * (1 + number)


def moving_rmsprop(number, optimizer):
    optimizer.param_groups[1].update(alpha=0.99 - 0.05 * number, lr=0.01 * (1 + number))


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda g: optim.AdamW(g, lr=0.1, weight_decay=0.1), moving_adam),
        (lambda g: optim.NAdam(g, lr=0.1, weight_decay=0.1), moving_adam),
        (lambda g: optim.SGD(g, lr=0.1, momentum=0.9, dampening=0.05), moving_sgd),
        (lambda g: optim.RMSprop(g, lr=0.01), moving_rmsprop),
    ],
)
def test_settings_changed_by_hand_are_used_without_a_new_capture(make, change):
    with counters.expect(captures=1, replays=3 if change is moving_sgd else 4):
        both(grouped(make, {}, {}), before_call=change)


@pytest.mark.parametrize("name", ["weight_decay", "momentum", "dampening"])
def test_a_setting_that_turns_zero_or_non_zero(name):
    """Optimizers ask ``if weight_decay != 0``: another program, the same numbers as eager."""

    def toggle(number, optimizer):
        optimizer.param_groups[0][name] = [0.0, 0.3, 0.0, 0.3, 0.3, 0.0][number]

    both(
        grouped(lambda g: optim.SGD(g, lr=0.1, momentum=0.9), {}, {}),
        before_call=toggle,
    )


def test_a_flag_of_a_group_changed_by_hand():
    def toggle(number, optimizer):
        optimizer.param_groups[1]["maximize"] = number % 2 == 1

    with counters.expect(captures=2):
        both(grouped(lambda g: optim.Adam(g, lr=0.05), {}, {}), before_call=toggle)


def test_a_setting_that_becomes_an_int():
    """``group["lr"] = 1`` is as good as 1.0."""

    def whole(number, optimizer):
        optimizer.param_groups[0]["lr"] = 1 if number % 2 else 0.5

    both(grouped(lambda g: optim.SGD(g, lr=0.5), {}, {}), before_call=whole)


def test_an_lr_that_was_always_an_int():
    assert_parity(grouped(lambda g: optim.SGD(g, lr=1), {}, {"lr": 0}), batches(Mlp, 6))


def test_a_group_added_between_calls():
    model = Mlp()
    optimizer = optim.SGD(model.first.parameters(), lr=0.1)
    step = tg.train_step(model, nn.functional.cross_entropy, optimizer)
    batch = batches(Mlp, 1)[0]
    before = model.second.weight.detach().clone()
    step(*batch)
    assert torch.equal(before, model.second.weight)

    optimizer.add_param_group({"params": model.second.parameters(), "lr": 0.2})
    step(*batch)

    assert not torch.equal(before, model.second.weight)


def test_a_group_without_parameters_and_a_frozen_parameter():
    def make():
        model = ConvNet()
        model.conv.weight.requires_grad_(False)
        groups = [{"params": []}, {"params": model.parameters(), "weight_decay": 0.5}]
        return Setup(model, optim.AdamW(groups, lr=0.05), cross_entropy)

    assert_parity(make, batches(ConvNet, 6))
