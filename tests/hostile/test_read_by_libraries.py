"""What a step reads of the user's objects through functions of torch's and Python's own."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional

from tests.cases.plays import Play, pairs, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


def reads(read: Callable[[], Any], *changes: Callable[[], Any]) -> Play:
    """``x * read()``; one change comes before the sixth call, the others three calls later each."""
    before = {5 + 3 * number: change for number, change in enumerate(changes)}
    return Play(lambda x: x * read(), [], before, singles(8 + 3 * len(changes)))


# --- schedulers, optimizers and scalers -----------------------------------------------------------


def scheduled(read: Callable[[Any, Any], Any]) -> Play:
    """A loop that decays by what it reads; the schedule goes on outside of it, now and then."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            model.weight.mul_(1 - 0.1 * read(optimizer, scheduler))

    before = {6: scheduler.step, 11: scheduler.step}
    return Play(step, [model, optimizer, scheduler], before, pairs(15))


case.rows(
    {
        "the_last_rate_of_a_scheduler": lambda: scheduled(
            lambda optimizer, scheduler: scheduler.get_last_lr()[0]
        ),
        "the_state_of_a_scheduler": lambda: scheduled(
            lambda optimizer, scheduler: 0.1 * scheduler.state_dict()["last_epoch"]
        ),
        "the_state_of_an_optimizer": lambda: scheduled(
            lambda optimizer, scheduler: optimizer.state_dict()["param_groups"][0]["lr"]
        ),
        "the_text_of_an_optimizer": lambda: scheduled(
            lambda optimizer, scheduler: 0.001 * len(repr(optimizer))
        ),
    },
    forms="step",
    serves=True,
)


@case(forms="step", serves=True)
def a_setting_of_a_scaler():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    return reads(scaler.get_growth_interval, lambda: scaler.set_growth_interval(7))


# --- objects that functions of libraries take -----------------------------------------------------


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    name: str = "a"


def scaling(read: Callable[[Config], Any]) -> Play:
    config = Config()

    def put(scale: float) -> Callable[[], None]:
        return lambda: setattr(config, "scale", scale)

    return reads(lambda: read(config), put(3.0), put(2.0))


@case(serves=True)
def a_dataclass_with_another_field():
    return scaling(lambda config: dataclasses.replace(config, name="b").scale)


@case(serves=True)
def an_event():
    event = threading.Event()
    return reads(lambda: 2 if event.is_set() else 1, event.set, event.clear)


@case(serves=True)
def the_size_of_a_queue():
    waiting: queue.Queue[int] = queue.Queue()
    waiting.put(1)
    return reads(waiting.qsize, lambda: waiting.put(2))


@case(forms="step", serves=True)
def a_distribution_whose_scale_is_replaced():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.distributions.Normal(0.0, 1.0)

    def step(x):
        optimizer.zero_grad()
        loss = -target.log_prob(model(x)).mean()
        loss.backward()
        optimizer.step()
        return loss

    def anneal():
        target.scale = target.scale * 0.5

    return Play(step, [model, optimizer], {5: anneal, 9: anneal}, singles(13))


# --- values of tensors ----------------------------------------------------------------------------


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"0": nn.Linear(4, 2), "1": nn.Linear(4, 2)})

    def forward(self, x, task):
        return self.heads[f"{task}"](x)


def tasks(number: Callable[[int], int]) -> Play:
    model = Heads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x, y, task):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x, task), y)
        loss.backward()
        optimizer.step()
        return loss

    calls = [(*pair, torch.tensor(number(n))) for n, pair in enumerate(pairs(14))]
    return Play(step, [model, optimizer], {}, calls)


@case(forms="step", serves=True)
def the_text_of_an_integer_chooses_a_module():
    return tasks(lambda call: call // 5 % 2)


@case(serves=True)
def memory_of_no_elements():
    def grown(x):
        found = torch.empty(x.shape[0], 0)
        for column in x.unbind(1):
            found = torch.cat([found, column[:, None] * 2], 1)
        return found

    return Play(grown, [], {}, singles(7))


# --- transforms of torch.func ---------------------------------------------------------------------


class Caches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.cache = nn.Linear(4, 2), {}

    def forward(self, x):
        if 1 not in self.cache:
            self.cache[1] = torch.ones(2)
        return self.linear(x) + self.cache[1]


@case(forms="step", serves=True)
def a_module_with_a_cache_called_with_other_weights():
    model = Caches()

    def step(x):
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        slopes = grad(lambda w: functional_call(model, w, (x,)).square().mean())(weights)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.sub_(slopes[name], alpha=0.1)

    return Play(step, [model], {}, singles(8))


@pytest.mark.parametrize("case", case)
def test_what_libraries_read(case):
    case.check()
