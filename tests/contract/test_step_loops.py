"""``tg.step``: the body of a loop as it stands; programs serve all calls but the first ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import optim
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.cases.plays import Play, adam, around_step, net, pairs, sgd, trains
from tests.cases.table import Table

case = Table(fallback="eager")


# --- where gradients are cleared ------------------------------------------------------------------


def cleared(where: str, to_none: bool = True) -> Play:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=1e-3)

    def step(x, y):
        if where == "first":
            optimizer.zero_grad(set_to_none=to_none)
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if where == "last":
            optimizer.zero_grad(set_to_none=to_none)
        return loss

    return Play(step, [model, optimizer])


case.rows({where: partial(cleared, where) for where in ("first", "last")}, served=7)
# The first call finds no gradient, the others find zeros or what was left.
case.rows({"to_zeros": lambda: cleared("first", False), "never": lambda: cleared("")}, served=6)


@case(served=14, programs=4, says=None)
def accumulation_over_four_calls():
    """With and without a gradient that is there, with and without the update; the first update."""
    model = net()
    optimizer = sgd(model)

    def step(x, y, last):
        loss = mse_loss(model(x), y) / 4
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    calls = [(*batch, number % 4 == 3) for number, batch in enumerate(pairs(24))]
    return Play(step, [model, optimizer], calls=calls)


@case(served=7)
def accumulation_in_one_call():
    model = net()
    optimizer = adam(model)

    def step(x, y):
        for rows, targets in zip(x.chunk(3), y.chunk(3), strict=True):
            (mse_loss(model(rows), targets) / 3).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Play(step, [model, optimizer])


# --- optimizers -----------------------------------------------------------------------------------


def by(make: Callable[[Any], optim.Optimizer]) -> Callable[[], Play]:
    def play():
        model = net()
        return trains(model, optimizer=make(model.parameters()))

    return play


case.rows(
    {
        "fused": by(partial(optim.Adam, lr=1e-2, fused=True)),
        "foreach": by(partial(optim.Adam, lr=1e-2, foreach=True)),
        "tensor": by(lambda parameters: optim.Adam(parameters, lr=torch.tensor(1e-2))),
    },
    served=7,
    programs=1,
)
case.rows(
    {
        "adamw": by(partial(optim.AdamW, lr=1e-2, amsgrad=True)),
        "rmsprop": by(partial(optim.RMSprop, lr=1e-2, momentum=0.1, centered=True)),
        **{one.__name__: by(one) for one in (optim.NAdam, optim.Adadelta, optim.Adagrad)},
        **{one.__name__: by(one) for one in (optim.Adamax, optim.Rprop)},
    },
    served=7,
    programs=1,
    slow=True,
)
# SGD's first momentum is a gradient, ASGD's first average a parameter: no later call is so.
case.rows(
    {
        "sgd": by(partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        "asgd": by(optim.ASGD),
    },
    served=6,
    programs=1,
)


@case(served=10, programs=2)
def an_optimizer_that_computes_otherwise_from_some_step_on():
    """RAdam's sixth step is another one than its fifth: each side has a program."""
    model = net()
    return trains(model, optimizer=optim.RAdam(model.parameters(), lr=1e-2), calls=pairs(14))


# --- clipping, schedulers -------------------------------------------------------------------------


def clipped(clip: Callable[[Any], Any]) -> Play:
    model = net()
    return around_step(model, adam(model), before=lambda: clip(model.parameters()))


case.rows(
    {
        "norm": lambda: clipped(partial(clip_grad_norm_, max_norm=0.5)),
        "strict": lambda: clipped(partial(clip_grad_norm_, max_norm=0.5, error_if_nonfinite=True)),
        "value": lambda: clipped(partial(clip_grad_value_, clip_value=0.1)),
    },
    served=7,
)


def scheduled(make: Callable[[optim.Optimizer], Any], inside: bool = True) -> Play:
    model = net()
    optimizer = adam(model)
    schedule = make(optimizer)
    between = {} if inside else dict.fromkeys(range(1, 9), schedule.step)
    after = (lambda: schedule.step()) if inside else None
    return around_step(model, optimizer, after, watched=[schedule], between=between)


def two(one: optim.Optimizer) -> list[Any]:
    return [lr_scheduler.LinearLR(one, total_iters=3), lr_scheduler.ExponentialLR(one, 0.9)]


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "onecycle": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20),
    "sequential": lambda one: lr_scheduler.SequentialLR(one, two(one), milestones=[3]),
}
MORE_SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=5),
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "lambda": partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step),
    "chained": lambda one: lr_scheduler.ChainedScheduler(two(one)),
}
for schedulers, slow in ((SCHEDULERS, False), (MORE_SCHEDULERS, True)):
    plays = {name: partial(scheduled, make) for name, make in schedulers.items()}
    case.rows(plays, served=7, programs=1, slow=slow)
case(
    lambda: scheduled(partial(lr_scheduler.ExponentialLR, gamma=0.5), inside=False),
    name="a_scheduler_outside_of_the_step",
    served=7,
    programs=1,
)


@case(served=7)
def a_scheduler_of_a_learning_rate_in_a_tensor():
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=torch.tensor(1e-2))
    schedule = lr_scheduler.StepLR(optimizer, 3, 0.5)
    return around_step(model, optimizer, lambda: schedule.step(), watched=[schedule])


@case(served=7)
def a_plateau_is_met_where_the_program_is_compared_with_eager():
    """The rate is first written in the fourth call, the first that is compared."""
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=torch.tensor(1e-2))
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    return around_step(model, optimizer, lambda: schedule.step(1.0), watched=[schedule])


@case(least=4, serves=True)
def a_scheduler_puts_a_tensor_in_the_place_of_a_number():
    def schedule(one: optim.Optimizer) -> Any:
        return lr_scheduler.MultiplicativeLR(one, lambda step: torch.tensor(0.9))

    return scheduled(schedule)


def plateau_first(finish: Callable[..., Any], lr: Any = 1e-2) -> Play:
    """The rate falls in the seventh call: programs are made, confirmed and compared before."""
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=lr)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5)

    def step(x, y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return finish(loss, schedule, optimizer.param_groups)

    return Play(step, [model, optimizer, schedule])


def by_name(loss, schedule, groups):
    return (schedule.step(1.0), loss * groups[0]["lr"])  # one line: it is looked at once


def by_count(loss, schedule, groups):
    return (schedule.step(1.0), loss * schedule.num_bad_epochs)


def through_an_alias(write: bool) -> Play:
    rate = torch.tensor(1e-2)

    def finish(loss, schedule, groups):
        schedule.step(1.0)
        return rate.clamp_(max=0.008) if write else loss * rate

    return plateau_first(finish, rate)


case.rows(
    {
        "by name": partial(plateau_first, by_name),
        "by count": partial(plateau_first, by_count),
        "alias read": partial(through_an_alias, False),
        "alias written": partial(through_an_alias, True),
    },
    served=0,
    says=r"it reads .* after scheduler.step\(\) has set it",
)


def lowers(rate: torch.Tensor) -> None:
    rate.mul_(0.99)


@case(served=7)
def a_rate_in_a_tensor_that_the_step_writes_too():
    model = net()
    rate = torch.tensor(1e-2)
    optimizer = optim.Adam(model.parameters(), lr=rate)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    return around_step(
        model, optimizer, lambda: schedule.step(), lambda: lowers(rate), watched=[schedule]
    )


@case(served=0, says=r"a scheduler of SGD steps before SGD.step\(\) \(at .*")
def a_scheduler_before_the_optimizer_keeps_the_step_in_eager():
    model = net()
    optimizer = sgd(model)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    return around_step(
        model, optimizer, before=lambda: schedule.step(), watched=[schedule], number=6
    )


# --- updates by hand, scalers ---------------------------------------------------------------------


def by_hand(clear: str) -> Play:
    weight, bias = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)

    def step(x, y):
        loss = mse_loss(x @ weight + bias, y)
        loss.backward()
        with torch.no_grad():
            for parameter in (weight, bias):
                parameter -= 0.1 * parameter.grad
                if clear == "none":
                    parameter.grad = None
                else:
                    parameter.grad.zero_()
        return loss

    return Play(step, [weight, bias])


case(lambda: by_hand("none"), name="by_hand", served=7)
case(lambda: by_hand("zero_"), name="by_hand_with_zeros", served=6)


def with_a_scaler(setting: str, value: float) -> Play:
    """A setting changes in the middle; later the scaler skips a step."""
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)

    def step(x, y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    calls = pairs(12)
    calls[8][0][0] = torch.inf
    change = {5: lambda: getattr(scaler, f"set_{setting}")(value)}
    return Play(step, [model, optimizer, scaler], change, calls)


case.rows(
    {
        "backoff_factor": lambda: with_a_scaler("backoff_factor", 0.125),
        "growth_interval": lambda: with_a_scaler("growth_interval", 3),
    },
    served=7,
)


# --- hooks of optimizers --------------------------------------------------------------------------


def halve(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def hooked(register: Callable[[optim.Optimizer], Any]) -> Play:
    """The usual loop; three of its calls have a hook of the optimizer."""
    model, hooks = net(), []
    optimizer = sgd(model)
    change = {3: lambda: hooks.append(register(optimizer)), 6: lambda: hooks.pop().remove()}
    return trains(model, optimizer=optimizer, before=change)


case.rows(
    {
        "before": lambda: hooked(lambda one: one.register_step_pre_hook(halve)),
        "after": lambda: hooked(lambda one: one.register_step_post_hook(halve)),
        "everywhere": lambda: hooked(lambda one: register_optimizer_step_pre_hook(halve)),
    },
)


@pytest.mark.parametrize("case", case)
def test_loops(case):
    case.check()
