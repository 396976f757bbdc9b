"""Param groups with their own settings, clipping, lr_scale, and settings changed by hand."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests import support
from tests.parity.models import Mlp, batches, cross_entropy
from torchgraph.testing import Setup, counters


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


def both(make, count=6, **eager: Any):
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


def clip(groups):
    """What OneFlow's keys ask for: each group that has one is clipped by its own norm."""
    for group in groups:
        if "clip_grad_max_norm" in group or "clip_grad_norm_type" in group:
            torch.nn.utils.clip_grad_norm_(
                group["params"],
                group.get("clip_grad_max_norm", 1.0),
                group.get("clip_grad_norm_type", 2.0),
            )


def moving_adam(number, optimizer):
    for group in optimizer.param_groups[:1]:
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


def shrinking_norm(number, optimizer):
    optimizer.param_groups[0]["clip_grad_max_norm"] = 0.5 / (1 + number)


def toggling(name: str) -> Callable[[int, Any], None]:
    """Optimizers ask ``if weight_decay != 0``: another program."""

    def toggle(number, optimizer):
        optimizer.param_groups[0][name] = [0.0, 0.3, 0.0, 0.3, 0.3, 0.0][number]

    return toggle


def flagging(number, optimizer):
    optimizer.param_groups[1]["maximize"] = number % 2 == 1


def whole(number, optimizer):
    """``group["lr"] = 1`` is as good as 1.0."""
    optimizer.param_groups[0]["lr"] = 1 if number % 2 else 0.5


def of(kind, **settings: Any):
    return lambda groups: kind(groups, **settings)


SGD = of(optim.SGD, lr=0.1, momentum=0.9)


class Row(NamedTuple):
    """An optimizer, the settings of its groups, and what is done by hand."""

    make: Callable[[Any], optim.Optimizer]
    settings: Sequence[dict[str, Any]] = ({}, {})
    before_call: Callable[[int, Any], None] = lambda number, optimizer: None
    after_backward: Callable[[Any], Any] = lambda groups: None
    counts: dict[str, int] = {}  # noqa: RUF012  # nobody writes it


def clipped(make, first: dict[str, Any], second: dict[str, Any] | None = None) -> Row:
    return Row(make, (first, second or {}), after_backward=clip)


ONE, THREE, FOUR = {"captures": 1}, {"captures": 1, "replays": 3}, {"captures": 1, "replays": 4}
ROWS = {
    "own settings of AdamW": Row(
        of(optim.AdamW, lr=0.01),
        (
            {"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.0},
            {"eps": 1e-3, "amsgrad": True, "maximize": True},
        ),
        counts=FOUR,
    ),
    "own settings of SGD": Row(
        of(optim.SGD, lr=0.05),
        ({"momentum": 0.9, "nesterov": True}, {"momentum": 0.0, "weight_decay": 0.1}),
        counts=THREE,
    ),
    "rates of 1 and 0": Row(of(optim.SGD, lr=1), ({}, {"lr": 0}), counts=FOUR),
    "lr_scale, in the Graph only": Row(
        of(optim.SGD, lr=0.05),
        ({"lr_scale": 0.5}, {}),
        after_backward=lambda groups: groups[0].update(lr=0.025),
    ),
    "a norm": clipped(SGD, {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0}),
    "a norm without a type": clipped(SGD, {"clip_grad_max_norm": 0.05}),
    "a type without a norm": clipped(SGD, {"clip_grad_norm_type": 1.0}),
    "the largest": clipped(SGD, {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": float("inf")}),
    "an odd type": clipped(SGD, {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 3.5}),
    "a norm that is large": clipped(SGD, {"clip_grad_max_norm": 100.0}),
    "norms before a fused update": clipped(
        of(optim.AdamW, lr=0.1, fused=True),
        {"clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0},
        {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0},
    ),
    "a norm that moves": Row(
        of(optim.SGD, lr=0.1), ({"clip_grad_max_norm": 1.0}, {}), shrinking_norm, clip, ONE
    ),
    "AdamW moves": Row(
        of(optim.AdamW, lr=0.1, weight_decay=0.1), before_call=moving_adam, counts=FOUR
    ),
    "NAdam moves": Row(
        of(optim.NAdam, lr=0.1, weight_decay=0.1), before_call=moving_adam, counts=FOUR
    ),
    "fused AdamW moves": Row(
        of(optim.AdamW, lr=0.1, fused=True), ({}, {"amsgrad": True}), moving_adam, counts=ONE
    ),
    "SGD moves": Row(
        of(optim.SGD, lr=0.1, momentum=0.9, dampening=0.05), before_call=moving_sgd, counts=THREE
    ),
    "RMSprop moves": Row(of(optim.RMSprop, lr=0.01), before_call=moving_rmsprop, counts=FOUR),
    **{
        f"{name} that turns zero or non-zero": Row(SGD, before_call=toggling(name))
        for name in ("weight_decay", "momentum", "dampening")
    },
    "a flag": Row(of(optim.Adam, lr=0.05), before_call=flagging, counts={"captures": 2}),
    "a rate that becomes an int": Row(of(optim.SGD, lr=0.5), before_call=whole),
}


@pytest.mark.parametrize("name", ROWS)
def test_six_steps_are_bitwise_eager(name):
    row = ROWS[name]
    with counters.expect(**row.counts):
        new = both(
            grouped(row.make, *row.settings),
            before_call=row.before_call,
            after_backward=row.after_backward,
        )
    if "lr_scale" in row.settings[0]:
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


@pytest.mark.parametrize(
    "clip_all",
    [
        lambda p: nn.utils.clip_grad_norm_(p, 0.05),
        lambda p: nn.utils.clip_grad_norm_(p, 0.05, float("inf")),
        lambda p: nn.utils.clip_grad_value_(p, 0.01),
    ],
    ids=["norm", "largest", "values"],
)
def test_clipping_called_in_build(clip_all):
    class Step(tg.Graph):
        def __init__(self, made):
            super().__init__()
            self.model = made.model
            self.add_optimizer(made.optimizer)

        def build(self, x, y):
            loss = cross_entropy(self.model, x, y)
            loss.backward()
            return loss, clip_all(self.model.parameters())

    def note(groups):
        norms.append(clip_all([p for group in groups for p in group["params"]]))

    make, norms = grouped(lambda g: optim.AdamW(g, lr=0.05), {}, {}), []
    torch.manual_seed(0)
    old = make()
    torch.manual_seed(0)
    new = make()
    torch.manual_seed(1)
    expected = train(old, batches(Mlp, 6), after_backward=note)
    step = Step(new)
    torch.manual_seed(1)
    for batch, loss, norm in zip(batches(Mlp, 6), expected, norms, strict=True):
        got = step(*batch)
        assert torch.equal(got[0], loss)
        assert got[1] is norm is None or torch.equal(got[1], norm)
    for left, right in zip(old.model.parameters(), new.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_group_added_between_calls():
    def make():
        model = Mlp()
        optimizer = optim.SGD(model.first.parameters(), lr=0.1)
        optimizer.later = [*model.second.parameters()]
        return Setup(model, optimizer, cross_entropy)

    def add(number, optimizer):
        if number == 3:
            for parameter in optimizer.later:
                parameter.grad = None
            optimizer.add_param_group({"params": optimizer.later, "lr": 0.2})

    both(make, before_call=add)
