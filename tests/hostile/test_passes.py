"""Steps of several passes, and under a grad scaler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from tests.cases.plays import Play, adam, net, pairs, sgd
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- several passes -------------------------------------------------------------------------------


class Sam(Optimizer):
    """As it is published: the old weights lie in the state."""

    def __init__(self, params, base, **options: Any):
        super().__init__(params, {"rho": 0.05, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        """To the top of the hill."""
        grads = [one.grad.norm(p=2) for group in self.param_groups for one in group["params"]]
        norm = torch.norm(torch.stack(grads), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for one in group["params"]:
                self.state[one]["old"] = one.data.clone()
                one.add_(one.grad * scale.to(one))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        """Back, and down."""
        for group in self.param_groups:
            for one in group["params"]:
                one.data = self.state[one]["old"]
        self.base.step()
        self.zero_grad()


@case
def sharpness_aware_as_published():
    model = net()
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.first_step()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.second_step()
        return loss

    return Play(
        step, [model, optimizer.base], {6: lambda: optimizer.param_groups[0].update(rho=0.5)}
    )


@case
def penalty_of_gradients():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        x = x.detach().requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = functional.mse_loss(out, y) + (grad.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer])


@case(slow=True)
def adversarial_examples():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        moved = x.clone().requires_grad_()
        for _ in range(2):
            (grad,) = torch.autograd.grad(functional.mse_loss(model(moved), y), moved)
            moved = (moved + 0.1 * grad.sign()).detach().requires_grad_()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(moved), y)
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer])


@case
def frozen_in_the_middle():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        model[0].requires_grad_(False)
        functional.mse_loss(model(x), y).backward()
        model[0].requires_grad_(True)
        functional.l1_loss(model(x), y).backward()
        optimizer.step()

    return Play(step, [model, optimizer], {5: lambda: model[2].requires_grad_(False)})


@case
def frozen_by_the_step_itself():
    model = net()
    optimizer = sgd(model)

    def step(x, y, freeze):
        for one in model[0].parameters():
            one.requires_grad = not freeze
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    calls = [(x, y, n in (5, 6, 7)) for n, (x, y) in enumerate(pairs(12))]
    return Play(step, [model, optimizer], calls=calls)


@case
def generators_and_critics():
    makes, judges = nn.Linear(2, 4), nn.Linear(4, 1)
    first, second = adam(makes), adam(judges)

    def step(x, judge_only):
        made = makes(torch.randn(len(x), 2))
        for one in judges.parameters():
            one.requires_grad_(True)
        second.zero_grad()
        (judges(x).mean() - judges(made.detach()).mean()).backward()
        second.step()
        for one in judges.parameters():
            one.data.clamp_(-0.1, 0.1)
        if judge_only:
            return
        for one in judges.parameters():
            one.requires_grad_(False)
        first.zero_grad()
        judges(made).mean().backward()
        first.step()

    calls = [(x, n % 3 != 2) for n, (x, _) in enumerate(pairs(15))]
    return Play(step, [makes, judges, first, second], calls=calls)


# --- scalers --------------------------------------------------------------------------------------


def scaled(before=None, overflow=(), **options: Any):
    """Under a grad scaler; the inputs of calls in ``overflow`` are too large."""
    model = net()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3, **options)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss, norm

    calls = pairs(12)
    for number in overflow:
        calls[number][0].mul_(torch.inf)
    play = Play(step, [model, optimizer, scaler], calls=calls)
    play.before = before(scaler) if before else {}
    return play


@case(forms="step", slow=True)
def overflows_in_recorded_calls():
    return scaled(overflow=(0, 1, 3))


case.rows(
    {
        "overflows_late": lambda: scaled(overflow=(5, 6, 9)),
        "a_scale_set_by_hand": lambda: scaled(
            lambda scaler: {5: lambda: scaler.update(8.0), 7: lambda: scaler.set_growth_factor(4)}
        ),
    },
)


@case(slow=True)
def a_scaler_loaded():
    state = {}

    def changes(scaler):
        return {
            4: lambda: state.update(scaler.state_dict()),
            7: lambda: scaler.load_state_dict(state),
        }

    return scaled(changes, overflow=(5, 6))


@case
def did_the_scaler_skip():
    model = net()
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=256.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x, y):
        optimizer.zero_grad()
        scaler.scale(functional.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scale <= scaler.get_scale():
            schedule.step()

    calls = pairs(12)
    calls[5][0].mul_(torch.inf)
    return Play(step, [model, optimizer, scaler, schedule], calls=calls)


@pytest.mark.parametrize("case", case)
def test_passes(case):
    case.check()
