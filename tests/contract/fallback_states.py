"""States in Python, randomness and optimizers: see fallback_cases."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .fallback_cases import Case, case, net, squares, trained

# --- states in Python -----------------------------------------------------------------------------


@case
def counter_that_is_read():
    class Counts(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) / self.calls

    return trained(Counts(4, 2), squares)


@case
def counter_that_nothing_reads():
    class Counts(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    return trained(Counts(4, 2), squares)


@case
def numbers_from_itertools():
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


@case
def generator_of_factors():
    factors = (0.9**n for n in range(100))
    return trained(net(), lambda model, x: squares(model, x) * next(factors))


@case
def clock():
    ticks = itertools.count()

    def build(x):
        now = next(ticks)  # stands for time.time(), which no two runs share
        time.monotonic()
        return x * math.exp(-now / 10)

    return build


@case
def global_counter():
    held = {"step": 0}

    def build(x):
        held["step"] += 1
        return x / held["step"]

    return build


@case
def every_third_call():
    class Third(nn.Linear):
        step = 0

        def forward(self, x):
            self.step += 1
            return super().forward(x * 2 if self.step % 3 else x)

    return trained(Third(4, 2), squares)


@case
def deque_of_batches():
    window: deque[torch.Tensor] = deque(maxlen=3)

    def build(x):
        window.append(x.clone())
        return torch.stack(list(window)).mean(0)

    return build


@case
def hidden_state_in_an_attribute():
    class Carries(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.hidden = nn.GRUCell(4, 4), None

        def forward(self, x):
            self.hidden = self.cell(x, self.hidden).detach()
            return self.cell(x, self.hidden)

    return trained(Carries(), squares)


@case
def order_of_a_dict():
    parts = {"a": 1.0, "b": 2.0}

    def build(x):
        parts["a"] = parts.pop("a")  # it is the last one now
        for factor in parts.values():
            x = (x + factor) * factor
        return x

    return build


@case
def cache_by_shape():
    cache: dict[Any, torch.Tensor] = {}

    def build(x):
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = torch.arange(x.shape[1]).float()
        return x + cache[key]

    return build


@case
def pointer_in_a_buffer():
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.register_buffer("queue", torch.zeros(2, 15))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            keys = self.net(x)
            ptr = int(self.ptr)
            self.queue[:, ptr : ptr + 5] = keys.detach().T
            self.ptr[0] = (ptr + 5) % 15
            return keys @ self.queue.clone()

    return trained(Queue(), squares)


# --- randomness -----------------------------------------------------------------------------------


@case
def random_of_python():
    return lambda x: x * random.random()


@case
def layer_drop():
    def loss(model, x):
        x = model[0](x)
        if random.random() > 0.3:
            x = model[1](x)
        return model[2](x).square().mean()

    return trained(net(), loss)


@case
def random_of_numpy():
    return lambda x: x + torch.as_tensor(np.random.randn(4), dtype=torch.float32)


@case
def seeded_inside():
    return lambda x: (torch.manual_seed(3), x + torch.rand(4))[1]


@case
def generator_of_its_own():
    source = torch.Generator().manual_seed(5)
    return lambda x: x + torch.rand(4, generator=source)


@case
def random_state_set_back():
    def build(x):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            noise = torch.rand(4)
        return F.dropout(x, 0.5) + noise

    return build


# --- optimizers -----------------------------------------------------------------------------------


@case
def lbfgs():
    return closed({"max_iter": 4})


@case
def lbfgs_with_a_line_search():
    return closed({"max_iter": 4, "line_search_fn": "strong_wolfe"})


def closed(options: dict[str, Any]) -> Case:
    def optimizer(parameters, lr):
        return torch.optim.LBFGS(parameters, lr=lr, **options)

    return trained(net(), squares, optimizer=optimizer)._replace(closure=True)


@case
def own_optimizer_with_a_step_in_its_group():
    class Decays(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr, "step": 0})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                group["step"] += 1
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"] / group["step"])

    return trained(net(), squares, optimizer=Decays)


@case
def own_optimizer_over_numpy():
    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    sign = torch.from_numpy(np.sign(parameter.grad.numpy()))
                    parameter.sub_(sign * group["lr"])

    return trained(net(), squares, optimizer=Signs)


@case
def own_optimizer_with_a_counter():
    class Periodic(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})
            self.count = 0

        @torch.no_grad()
        def step(self, closure=None):
            self.count += 1
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad * (0.1 if self.count % 2 else 0.2))

    return trained(net(), squares, optimizer=Periodic)
