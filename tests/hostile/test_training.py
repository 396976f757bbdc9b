"""What people do around ``optimizer.step()``: clipping, averages, SAM, scalers, own optimizers."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.cases.plays import Play, adam, around_step, net, pairs, sgd
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- gradients before the update ------------------------------------------------------------------


@case
def norm_clipped_by_a_number_that_changes():
    model, held = net(), SimpleNamespace(most=0.1)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), held.most)  # noqa: E731
    change = {5: lambda: setattr(held, "most", 0.01), 7: lambda: setattr(held, "most", 0.1)}
    return around_step(model, sgd(model), before=clip, between=change)


@case
def norm_clipped_by_the_norms_seen_so_far():
    model, norms = net(), []

    def clip():
        most = sum(norms[-5:]) / len(norms[-5:]) if norms else 1.0
        norm = nn.utils.clip_grad_norm_(model.parameters(), most)
        norms.append(norm.item())

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
def gradients_replaced():
    model = net()

    def signs():
        for one in model.parameters():
            one.grad = one.grad.sign()

    return around_step(model, sgd(model), before=signs)


@case(slow=True)
def gradients_dropped_by_their_size():
    model = net()

    def drop():
        for one in model.parameters():
            if one.grad.abs().max() < 0.1:
                one.grad = None

    return around_step(model, sgd(model), before=drop, number=14)


# --- weights after the update ---------------------------------------------------------------------


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


@case(slow=True)
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

    swapped = lambda: (swap(), model(torch.ones(1, 4)), back())  # noqa: E731
    between = dict.fromkeys(range(3, 9), swapped)
    return around_step(model, sgd(model), after, watched=[shadow], between=between)


@case
def averaged_model_started_late():
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    held = SimpleNamespace(on=False)
    after = lambda: held.on and average.update_parameters(model)  # noqa: E731
    between = {5: lambda: setattr(held, "on", True)}
    return around_step(model, sgd(model), after, watched=[average], between=between, number=12)


@case(slow=True)
def swa_with_its_plain_mean():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    average, optimizer = AveragedModel(model), sgd(model)
    schedule = SWALR(optimizer, swa_lr=0.5, anneal_epochs=3)

    def after():
        average.update_parameters(model)
        schedule.step()

    between = {7: lambda: update_bn([torch.ones(3, 4)], average)}
    return around_step(model, optimizer, after, watched=[average, schedule], between=between)


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

    return around_step(model, sgd(model), after, watched=[slow, held], number=16)


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


@case
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


@pytest.mark.parametrize("case", case)
def test_training(case):
    case.check()
