"""What people do around ``optimizer.step()``: clipping, averages, SAM, scalers, own optimizers."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.hostile.kit import Cases, Play, net, pairs, sgd, trains

case = Cases()


def adam(model, **options):
    """With a rate that counts."""
    return torch.optim.Adam(model.parameters(), lr=0.05, **options)


def around_step(model, optimizer, after=None, before=None, watched=(), **more):
    """A loop that calls ``before()`` after ``backward`` and ``after()`` after the update."""

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        found = before() if before else None
        optimizer.step()
        if after:
            after()
        return loss, found

    return Play(step, [model, optimizer, *watched], **more)


# --- gradients before the update ------------------------------------------------------------------


@case
def norm_clipped():
    model = net()
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # noqa: E731
    return around_step(model, adam(model), before=clip)


@case
def norm_clipped_by_a_number_that_changes():
    model, held = net(), SimpleNamespace(most=0.1)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), held.most)  # noqa: E731
    change = {5: lambda: setattr(held, "most", 0.01), 7: lambda: setattr(held, "most", 0.1)}
    return _with(around_step(model, sgd(model), before=clip), change)


def _with(play, change):
    play.before = change
    return play


@case
def norm_clipped_by_the_norms_seen_so_far():
    model, norms = net(), []

    def clip():
        most = sum(norms[-5:]) / len(norms[-5:]) if norms else 1.0
        norm = nn.utils.clip_grad_norm_(model.parameters(), most)
        norms.append(norm.item())

    return _long(around_step(model, sgd(model), before=clip, watched=[norms]), 14)


def _long(play, number):
    play.calls = pairs(number)
    return play


@case(forms="step")
def norm_clipped_as_lightning_of_tensors_kept():
    model, norms = net(), []

    def clip():
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))

    return around_step(model, sgd(model), before=clip, watched=[norms])


@case(forms="step")
def an_update_skipped_for_its_norm():
    model, optimizer = net(), None
    optimizer = adam(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters()])
        if norm > 1.0:
            return loss, norm
        optimizer.step()
        return loss, norm

    return Play(step, [model, optimizer], calls=pairs(16, rows=3))


@case
def noise_on_gradients():
    model = net()

    def noise():
        for one in model.parameters():
            one.grad.add_(torch.randn_like(one.grad), alpha=0.1)

    return around_step(model, sgd(model), before=noise)


@case
def gradients_replaced():
    model = net()

    def signs():
        for one in model.parameters():
            one.grad = one.grad.sign()

    return around_step(model, sgd(model), before=signs)


@case
def gradients_dropped_by_their_size():
    model = net()

    def drop():
        for one in model.parameters():
            if one.grad.abs().max() < 0.1:
                one.grad = None

    return _long(around_step(model, sgd(model), before=drop), 14)


@case
def gradients_projected():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        out = model(x)
        first = torch.autograd.grad(
            out[:, 0].square().mean(), model.parameters(), retain_graph=True
        )
        second = torch.autograd.grad(functional.mse_loss(out, y), model.parameters())
        for one, left, right in zip(model.parameters(), first, second, strict=True):
            dot = (left * right).sum()
            one.grad = torch.where(dot < 0, left + right - dot * right, left + right)
        optimizer.step()

    return Play(step, [model, optimizer])


# --- weights after the update ---------------------------------------------------------------------


@case
def an_average_by_deepcopy():
    model = net()
    average = copy.deepcopy(model)

    def after():
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)

    return around_step(model, sgd(model), after, watched=[average])


@case
def an_average_with_a_decay_that_grows():
    model, held = net(), SimpleNamespace(updates=0)
    average = copy.deepcopy(model)

    def after():
        held.updates += 1
        decay = min(0.99, (1 + held.updates) / (10 + held.updates))
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)

    return around_step(model, sgd(model), after, watched=[average, held])


@case
def an_average_in_a_dict():
    model = net()
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def after():
        for name, one in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * one.detach()

    return around_step(model, sgd(model), after, watched=[shadow])


@case
def the_average_swapped_in_to_evaluate():
    model = net()
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
    backup = {}

    def after():
        with torch.no_grad():
            for name, one in model.named_parameters():
                shadow[name].lerp_(one, 0.1)

    def swap():
        for name, one in model.named_parameters():
            backup[name] = one.data
            one.data = shadow[name]

    def back():
        for name, one in model.named_parameters():
            one.data = backup.pop(name)

    play = around_step(model, sgd(model), after, watched=[shadow])
    swapped = lambda: (swap(), model(torch.ones(1, 4)), back())  # noqa: E731
    return _with(play, {n: swapped for n in range(3, 9)})


@case
def averaged_model_started_late():
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    held = SimpleNamespace(on=False)
    after = lambda: held.on and average.update_parameters(model)  # noqa: E731
    play = around_step(model, sgd(model), after, watched=[average])
    return _with(_long(play, 12), {5: lambda: setattr(held, "on", True)})


@case
def swa_with_its_plain_mean():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    average, optimizer = AveragedModel(model), sgd(model)
    schedule = SWALR(optimizer, swa_lr=0.5, anneal_epochs=3)

    def after():
        average.update_parameters(model)
        schedule.step()

    play = around_step(model, optimizer, after, watched=[average, schedule])
    return _with(play, {7: lambda: update_bn([torch.ones(3, 4)], average)})


@case
def lookahead():
    model, held = net(), SimpleNamespace(k=0)
    slow = [one.detach().clone() for one in model.parameters()]

    def after():
        held.k += 1
        if held.k % 3 == 0:
            with torch.no_grad():
                for anchor, one in zip(slow, model.parameters(), strict=True):
                    anchor.lerp_(one, 0.5)
                    one.copy_(anchor)

    play = around_step(model, sgd(model), after, watched=[slow, held])
    return _long(play, 16)


@case
def weights_kept_in_a_range():
    model = net()
    after = lambda: [one.data.clamp_(-0.3, 0.3) for one in model.parameters()]  # noqa: E731
    return around_step(model, sgd(model), after)


@case
def weights_normalized_by_assignment():
    model = net()

    def after():
        model[0].weight.data = functional.normalize(model[0].weight.data)

    return around_step(model, sgd(model), after)


@case
def weights_restored_where_the_loss_is_nan():
    model = net()
    good = copy.deepcopy(model.state_dict())
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            model.load_state_dict(good)
            return loss
        loss.backward()
        optimizer.step()
        for name, one in model.state_dict().items():
            good[name].copy_(one)
        return loss

    calls = pairs(11)
    calls[6][0][0, 0] = torch.nan
    return Play(step, [model, optimizer, good], calls=calls)


@case(fault={"step": "the dict stays what a recorded call has assigned"})
def the_best_weights_kept():
    model = net()
    held = SimpleNamespace(best=torch.tensor(9.0), weights=copy.deepcopy(model.state_dict()))
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if loss < held.best:
            held.best = loss.detach()
            held.weights = {name: one.clone() for name, one in model.state_dict().items()}
        return loss

    return Play(step, [model, optimizer, held], calls=pairs(16, rows=2))


@case
def pruned_by_a_mask_that_is_replaced():
    model, held = net(), SimpleNamespace(mask=torch.ones(3, 4))
    after = lambda: model[0].weight.data.mul_(held.mask)  # noqa: E731
    change = {5: lambda: setattr(held, "mask", (torch.rand(3, 4) > 0.5).float())}
    return _with(around_step(model, sgd(model), after), change)


# --- several passes -------------------------------------------------------------------------------


@case
def sharpness_aware():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        norm = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
        moved = []
        with torch.no_grad():
            for one in model.parameters():
                moved.append(one.grad * (0.05 / (norm + 1e-12)))
                one.add_(moved[-1])
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for one, by in zip(model.parameters(), moved, strict=True):
                one.sub_(by)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Play(step, [model, optimizer])


class Sam(Optimizer):
    """As it is published: the old weights lie in the state."""

    def __init__(self, params, base, **options):
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


@case
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


def scaled(before=None, overflow=(), **options):
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


@case
def overflows_late():
    return scaled(overflow=(5, 6, 9))


@case(forms="step")
def overflows_in_recorded_calls():
    return scaled(overflow=(0, 1, 3))


@case(fault="the factor that was set is not used")
def a_scale_set_by_hand():
    return scaled(
        lambda scaler: {5: lambda: scaler.update(8.0), 7: lambda: scaler.set_growth_factor(4)}
    )


@case
def a_scaler_that_is_off():
    return scaled(enabled=False)


@case
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
def test_training(case):
    case.check()
