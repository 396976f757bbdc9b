"""``tg.step``: the body of a supervised loop as it stands, bitwise eager's after every call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

from tests import support
from tests.contract.loops import (
    Loop,
    adam,
    assert_as_eager,
    in_eager,
    mlp,
    pairs,
    sgd,
    supervised,
)
from torchgraph.errors import EagerWarning


@pytest.mark.parametrize(
    ("zero_grad", "to_none"), [("first", True), ("first", False), ("last", True), ("never", True)]
)
def test_gradients_are_cleared_where_the_loop_clears_them(zero_grad, to_none):
    make = partial(
        supervised, partial(torch.optim.SGD, lr=1e-3), zero_grad=zero_grad, to_none=to_none
    )

    # The first call finds no gradient, the others find zeros or what was left.
    replayed = 6 if to_none and zero_grad != "never" else 5
    assert_as_eager(make, pairs(8), replayed=replayed)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "fused": partial(torch.optim.Adam, lr=1e-2, fused=True),
    "foreach": partial(torch.optim.Adam, lr=1e-2, foreach=True),
    "tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(1e-2)),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-2, momentum=0.1, centered=True),
    "nadam": partial(torch.optim.NAdam, lr=1e-2),
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
}


@pytest.mark.parametrize(
    "name", support.thinned(OPTIMIZERS, keep=["sgd", "fused", "foreach", "tensor", "asgd"])
)
def test_every_optimizer(name):
    # SGD's first momentum is a gradient, ASGD's first average a parameter: no later call is so.
    replayed = 5 if name in ("sgd", "asgd") else 6
    graph = assert_as_eager(partial(supervised, OPTIMIZERS[name]), pairs(8), replayed=replayed)

    assert len(support.replays(graph)) == 1


def test_an_optimizer_that_computes_otherwise_from_some_step_on():
    # RAdam's sixth step is another one than its fifth: each side has a program.
    make = partial(supervised, partial(torch.optim.RAdam, lr=1e-2))

    graph = assert_as_eager(make, pairs(14), replayed=10)

    assert len(support.replays(graph)) == 2


@pytest.mark.parametrize(
    "clip",
    [
        partial(clip_grad_norm_, max_norm=0.5),
        partial(clip_grad_norm_, max_norm=0.5, error_if_nonfinite=True),
        partial(clip_grad_value_, clip_value=0.1),
    ],
    ids=["norm", "strict", "value"],
)
def test_clipped_gradients(clip):
    assert_as_eager(partial(supervised, adam, clip=clip), pairs(8), replayed=6)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=5),
    "onecycle": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20),
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step),
    "sequential": lambda optim: lr_scheduler.SequentialLR(
        optim,
        [lr_scheduler.LinearLR(optim, total_iters=3), lr_scheduler.ExponentialLR(optim, 0.9)],
        milestones=[3],
    ),
    "chained": lambda optim: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optim, total_iters=3), lr_scheduler.ExponentialLR(optim, 0.9)]
    ),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=list(SCHEDULERS))
def test_a_scheduler_in_the_step(scheduler):
    graph = assert_as_eager(partial(supervised, adam, scheduler=scheduler), pairs(8), replayed=6)

    assert len(support.replays(graph)) == 1


def test_a_scheduler_of_a_learning_rate_in_a_tensor():
    def make():
        rate = torch.tensor(1e-2)
        steps = partial(lr_scheduler.StepLR, step_size=3, gamma=0.5)
        return supervised(partial(torch.optim.Adam, lr=rate), scheduler=steps)

    assert_as_eager(make, pairs(10), replayed=8)


def test_a_scheduler_that_looks_at_the_loss():
    def make():
        model = mlp()
        optimizer = sgd(model.parameters())
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step(loss.detach())
            return loss

        return Loop(step, [model, optimizer, scheduler])

    assert_as_eager(make, pairs(12), replayed=10)


def test_a_scheduler_outside_of_the_step():
    def make():
        loop = supervised(adam)
        scheduler = lr_scheduler.ExponentialLR(loop.owners[1], 0.5)
        every = dict.fromkeys(range(1, 10), scheduler.step)
        return Loop(loop.step, [*loop.owners, scheduler], every)

    graph = assert_as_eager(make, pairs(10), replayed=8)

    assert len(support.replays(graph)) == 1


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_a_scheduler_before_the_optimizer_keeps_the_step_in_eager():
    def make():
        model = mlp()
        optimizer = sgd(model.parameters())
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(x, y):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            scheduler.step()
            optimizer.step()
            return loss

        return Loop(step, [model, optimizer, scheduler])

    with pytest.warns(EagerWarning, match=r"a scheduler of SGD steps before SGD.step\(\) \(at .*"):
        assert_as_eager(make, pairs(6), replayed=0, configure=in_eager)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.CacheThrashWarning")
def test_accumulation_over_four_calls():
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y, last):
            loss = functional.mse_loss(model(x), y) / 4
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        return Loop(step, [model, optimizer])

    def batches():
        return [(*batch, number % 4 == 3) for number, batch in enumerate(pairs(24)())]

    graph = assert_as_eager(make, batches, replayed=14)

    # With and without a gradient that is there, with and without the update, and the first update.
    assert len(support.replays(graph)) == 4


def test_accumulation_in_one_call():
    def make():
        model = mlp()
        optimizer = adam(model.parameters())

        def step(x, y):
            for rows, targets in zip(x.chunk(3), y.chunk(3), strict=True):
                (functional.mse_loss(model(rows), targets) / 3).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return Loop(step, [model, optimizer])

    assert_as_eager(make, pairs(8), replayed=6)


def test_a_closure():
    def make():
        model = mlp()
        optimizer = sgd(model.parameters())

        def step(x, y):
            def closure():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure)

        return Loop(step, [model, optimizer])

    assert_as_eager(make, pairs(8), replayed=6)


def test_lbfgs_stays_in_eager():
    def make():
        model = mlp()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def step(x, y):
            def closure():
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure)

        return Loop(step, [model, optimizer])

    with pytest.warns(EagerWarning, match="LBFGS"):
        assert_as_eager(make, pairs(6), replayed=0, configure=in_eager)
