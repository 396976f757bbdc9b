"""Steps that move numbers of their own, as people write them: counters, meters, schedules.

Each gives (step, the state that it leaves in Python).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from math import cos, pi
from typing import Any

import torch
from torch import nn

Step = Callable[[torch.Tensor], Any]
LOOPS: dict[str, Callable[[], tuple[Step, Callable[[], tuple[Any, ...]]]]] = {}


def loop(make: Any) -> Any:
    LOOPS[make.__name__] = make
    return make


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, scale: Any = 1.0):
    optimizer.zero_grad()
    loss = net(x).square().mean() * scale
    loss.backward()
    optimizer.step()
    return loss


def base(optimizer: Any = torch.optim.SGD) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net = nn.Linear(6, 6)
    return net, optimizer(net.parameters(), 0.01)


class Trainer:
    def __init__(self) -> None:
        self.net, self.optimizer = base()
        self.n, self.avg, self.best = 0, 0.0, float("inf")

    def train(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
        return trained(self.net, self.optimizer, x, scale)

    def set_rate(self, rate: Any) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @property
    def rate(self) -> Any:
        return self.optimizer.param_groups[0]["lr"]


class AverageMeter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.val: Any = 0
        self.avg: Any = 0
        self.sum: Any = 0
        self.count = 0

    def update(self, val: Any, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


@loop
def closure():
    (net, optimizer), n = base(), 0

    def step(x):
        nonlocal n
        n += 1
        return trained(net, optimizer, x) * (n * 0.5)

    return step, lambda: (n,)


@loop
def in_a_dict():
    (net, optimizer), state = base(), {"train": {"step": 0, "loss": 0.0}}

    def step(x):
        held = state["train"]
        held["step"] += 1
        loss = trained(net, optimizer, x)
        held["loss"] += loss.item()
        return loss + held["step"]

    return step, lambda: tuple(state["train"].values())


@loop
def in_a_list():
    (net, optimizer), state = base(), [0, 1.0, 2]

    def step(x):
        state[0] += 1
        state[1] *= 0.9
        state[2] += 2
        return trained(net, optimizer, x) * sum(state)

    return step, lambda: tuple(state)


CALLS = 0


@loop
def in_a_global():
    global CALLS
    CALLS, (net, optimizer) = 0, base()

    def step(x):
        global CALLS
        CALLS += 1
        return trained(net, optimizer, x) * CALLS

    return step, lambda: (CALLS,)


@loop
def in_a_module():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(6, 6), 0

        def forward(self, x):
            self.calls += 1
            return self.linear(x) * (1 + 1 / self.calls)

    torch.manual_seed(0)
    net = Counts()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return lambda x: trained(net, optimizer, x), lambda: (net.calls,)


@loop
def in_a_slot():
    class Counts:
        __slots__ = ("n",)

    (net, optimizer), held = base(), Counts()
    held.n = 0

    def step(x):
        held.n += 1
        return trained(net, optimizer, x) * held.n

    return step, lambda: (held.n,)


@loop
def in_a_counter():
    (net, optimizer), seen = base(), collections.Counter()

    def step(x):
        seen["steps"] += 1
        seen["samples"] += len(x)
        return trained(net, optimizer, x)

    return step, lambda: tuple(seen.items())


@loop
def meters_by_name():
    (net, optimizer), held = base(), collections.defaultdict(AverageMeter)

    def step(x):
        loss = trained(net, optimizer, x)
        for name, value in {"loss": loss, "twice": loss * 2}.items():
            held[name].update(value.item(), len(x))
        return loss

    return step, lambda: tuple(one.avg for one in held.values())


@loop
def sums_over_items():
    (net, optimizer), sums = base(), {"a": 0.0, "b": 1.0}

    def step(x):
        loss = trained(net, optimizer, x)
        for name, value in sums.items():
            sums[name] = value * 0.9 + loss.item()
        return loss

    return step, lambda: tuple(sums.values())


@loop
def moving_average():
    t = Trainer()

    def step(x):
        loss = t.train(x)
        t.n += 1
        t.avg = 0.9 * t.avg + (1 - 0.9) * float(loss.detach())
        return loss - t.avg / (1 - 0.9**t.n)

    return step, lambda: (t.n, t.avg)


@loop
def rounded():
    t = Trainer()

    def step(x):
        loss = t.train(x)
        t.avg = round(float(t.avg) * 0.5 + loss.item(), 4)
        t.n = int(t.n * 1.5) + 1
        return loss

    return step, lambda: (t.n, t.avg)


@loop
def cosine():
    t = Trainer()

    def step(x):
        t.n += 1
        t.set_rate(0.05 * (1 + math.cos(math.pi * t.n / 100)) + 0.001 * cos(pi / t.n))
        return t.train(x)

    return step, lambda: (t.n, t.rate)


@loop
def betas():
    (net, optimizer), state = base(torch.optim.Adam), {"n": 0}

    def step(x):
        state["n"] += 1
        group = optimizer.param_groups[0]
        group["betas"] = (min(0.95, 0.5 + 0.01 * state["n"]), group["betas"][1])
        return trained(net, optimizer, x)

    return step, lambda: (state["n"], *optimizer.param_groups[0]["betas"])


@loop
def beside_a_scheduler():
    t = Trainer()
    scheduler = torch.optim.lr_scheduler.StepLR(t.optimizer, 3, 0.5)

    def step(x):
        t.n += 1
        loss = t.train(x)
        scheduler.step()
        return loss * t.n

    return step, lambda: (t.n, t.rate, scheduler.last_epoch)


@loop
def best_so_far():
    t = Trainer()

    def step(x):
        loss = t.train(x)
        t.best = min(t.best, loss.item())
        return loss

    return step, lambda: (t.best,)


@loop
def best_by_a_branch():
    t, best = Trainer(), {}

    def step(x):
        loss = t.train(x)
        if loss.item() < t.best:
            t.best = loss.item()
            best["weight"] = t.net.weight.detach().clone()
        else:
            t.n += 1
        return loss

    return step, lambda: (t.best, t.n, best["weight"].sum().item())


@loop
def accumulation():
    (net, optimizer), n = base(), 0

    def step(x):
        nonlocal n
        loss = net(x).square().mean() / 4
        loss.backward()
        if (n + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        n += 1
        return loss

    return step, lambda: (n,)


@loop
def starts_again():
    t = Trainer()

    def step(x):
        loss = t.train(x)
        t.avg += loss.item()
        t.n += 1
        if t.n == 5:
            t.n, t.avg = 0, 0.0
        return loss

    return step, lambda: (t.n, t.avg)


@loop
def appended():
    (net, optimizer), history = base(), []

    def step(x):
        loss = trained(net, optimizer, x)
        history.append(loss.item())
        return loss

    return step, lambda: tuple(history)


@loop
def returned():
    t = Trainer()

    def step(x):
        loss = t.train(x)
        t.n += 1
        return {"loss": loss, "item": loss.item(), "step": t.n, "half": t.n / 2}

    return step, lambda: (t.n,)


@loop
def odd_floats():
    t = Trainer()
    t.avg, t.best, t.n = float("nan"), float("inf"), 2**62

    def step(x):
        t.avg, t.best, t.n = t.avg + 1, -t.best, t.n * 2 + (t.n & 1)
        return t.train(x) * (t.n % 7)

    return step, lambda: (t.avg, t.best, t.n)


@loop
def asked_for_its_type():
    t = Trainer()

    def step(x):
        t.n += 1
        plain = type(t.n) is int and isinstance(t.n, int) and not hasattr(t.n, "item")
        return t.train(x) * (t.n if plain else -1)

    return step, lambda: (t.n,)


@loop
def milestones_in_a_list() -> Any:
    t, milestones = Trainer(), [3, 7, 11]

    def step(x):
        t.n += 1
        if t.n in milestones:
            t.set_rate(t.rate * 0.5)
        return t.train(x)

    return step, lambda: (t.n, t.rate)


@loop
def an_epoch_beside_its_counter() -> Any:
    (net, optimizer), state = base(), {}

    def step(x):
        state["n"] = state.get("n", 0) + 1
        state["epoch"] = state["n"] // 4  # that stays while the first calls are recorded
        return trained(net, optimizer, x, 1 / (1 + state["epoch"]))

    return step, lambda: tuple(state.values())
