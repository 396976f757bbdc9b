"""Steps that run in eager and under torch.compile: of some, no program can be made."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

CASES: dict[str, Callable[[], Case]] = {}
"""By name: makes a step with all that it keeps."""


class Case(NamedTuple):
    """A step, what it trains, and how."""

    build: Callable[..., Any]
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    batches: Callable[[], list[Any]] = lambda: [torch.randn(5, 4) for _ in range(6)]
    """One argument for each call."""
    closure: bool = False
    """The optimizer asks for one."""


def case(make: Callable[[], Any]) -> Callable[[], Any]:
    """Decorator: a function that makes a `Case`, or a step alone."""

    def made() -> Case:
        found = make()
        return found if isinstance(found, Case) else Case(found)

    CASES[make.__name__] = made
    return make


def trained(model: nn.Module, loss: Callable[..., Any], **more: Any) -> Case:
    """``loss(model, x)`` is minimized by SGD with momentum, or by ``optimizer``."""
    optimizer = more.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.05)

    def build(x: Any) -> torch.Tensor:
        value = loss(model, x)
        value.backward()
        return value

    return Case(build, model, optimizer, **more)


def squares(model: nn.Module, x: Any) -> torch.Tensor:
    return model(x).square().mean()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


# --- values in Python -----------------------------------------------------------------------------


@case
def boolean_assignment():
    def build(x):
        y = x.clone()
        y[y > 0.5] = y[y > 0.5] * 2
        return y

    return build


@case
def histogram_and_bins():
    return lambda x: (torch.histc(x, 4), torch.bincount(x.flatten().abs().long()))


@case
def asserts_and_distributions():
    def build(x):
        assert torch.isfinite(x).all()
        return torch.distributions.Normal(x, x.abs() + 1).log_prob(x * 2)

    return build


# --- what leaves torch ----------------------------------------------------------------------------


@case
def numpy_there_and_back():
    return lambda x: torch.from_numpy(np.sort(x.numpy(), axis=1))


@case
def numpy_in_a_loss():
    def loss(model, x):
        out = model(x)
        weight = np.exp(out.detach().numpy()).mean()
        return out.square().mean() * float(weight)

    return trained(net(), loss)


@case
def custom_function_over_numpy():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x) -> torch.Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 3)

        @staticmethod
        def backward(ctx, gradient) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * torch.from_numpy(3 * x.detach().numpy() ** 2)

    return trained(net(), lambda model, x: Cube.apply(model(x)).mean())


# --- states in Python -----------------------------------------------------------------------------


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
def cache_by_shape():
    cache: dict[Any, torch.Tensor] = {}

    def build(x):
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = torch.arange(x.shape[1]).float()
        return x + cache[key]

    return build


# --- randomness -----------------------------------------------------------------------------------


@case
def random_of_python():
    return lambda x: x * random.random()


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


# --- optimizers -----------------------------------------------------------------------------------


@case
def lbfgs():
    return closed({"max_iter": 4})


def closed(options: dict[str, Any]) -> Case:
    def optimizer(parameters, lr):
        return torch.optim.LBFGS(parameters, lr=lr, **options)

    return trained(net(), squares, optimizer=optimizer)._replace(closure=True)


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


# --- layouts and kinds of tensors -----------------------------------------------------------------


@case
def sparse_made_inside():
    return lambda x: (x.relu().to_sparse() * 2).to_dense()


@case
def sparse_gradient_sgd():
    return sparse(torch.optim.SGD)


@case
def sparse_gradient_sparse_adam():
    return sparse(torch.optim.SparseAdam)


def sparse(optimizer: Any) -> Case:
    def tokens() -> list[torch.Tensor]:
        return [torch.randint(0, 9, (7,)) for _ in range(6)]

    return trained(nn.Embedding(9, 3, sparse=True), squares, optimizer=optimizer, batches=tokens)


@case
def sparse_input():
    def batches():
        return [torch.randn(4, 4).relu().to_sparse() for _ in range(6)]

    return Case(lambda x: torch.sparse.mm(x, torch.ones(4, 2)), batches=batches)


@case
def nested_input():
    def batches():
        return [torch.nested.nested_tensor([torch.randn(n, 4), torch.randn(2, 4)]) for n in [3] * 6]

    def loss(model, x):
        return torch.nested.to_padded_tensor(model(x), 0.0).square().sum()

    return trained(nn.Linear(4, 2), loss, batches=batches)


@case
def input_with_a_history():
    def batches():
        return [torch.randn(5, 4, requires_grad=True) * 2 for _ in range(6)]

    return Case(lambda x: x * 3, batches=batches)


@case
def input_that_is_a_set():
    return Case(lambda xs: sum(xs), batches=lambda: [{n, n + 1} for n in range(6)])


class Tagged(torch.Tensor):
    """Keeps its class through ops."""


class Wrapped(torch.Tensor):
    """Has a dispatch of its own."""

    @staticmethod
    def __new__(cls, held) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        def bare(value):
            return value.held if isinstance(value, Wrapped) else value

        return func(*map(bare, args), **(kwargs or {}))


@case
def subclass_as_input():
    def batches():
        return [torch.randn(5, 4).as_subclass(Tagged) for _ in range(6)]

    return Case(lambda x: (x * 2).as_subclass(torch.Tensor) + 1, batches=batches)


@case
def subclass_as_parameter():
    model = net()
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Tagged))
    return trained(model, lambda model, x: squares(model, x).as_subclass(torch.Tensor))


@case
def subclass_with_a_dispatch_of_its_own():
    return lambda x: Wrapped(x) * 2 + 1


@case
def unfilled_memory():
    return lambda x: torch.where(x > 0, x, torch.empty(5, 4).mul_(0).nan_to_num_(0))


@case
def expanded_memory_is_written():
    def build(x):
        wide = torch.zeros(1, 4).expand(1, 4)
        return wide.add_(x[:1]).sum() + x.new_zeros(1, 1).expand(2, 1).contiguous().add_(1)

    return build


# --- functions of functions, hooks, views, exceptions ---------------------------------------------


@case
def cond():
    return lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


@case
def per_sample_gradients():
    def one(weight, row):
        return (row @ weight).square().sum()

    return lambda x: torch.func.vmap(torch.func.grad(one), (None, 0))(torch.ones(4, 2), x)


@case
def jacobian_and_hessian():
    return lambda x: (torch.func.jacrev(torch.sin)(x[0]), torch.func.hessian(torch.sum)(x[0] ** 2))


@case
def hook_that_logs_numbers():
    model, log = net(), []
    model[0].register_forward_hook(lambda module, args, out: log.append(out.mean().item()))
    return trained(model, squares)


@case
def hook_on_a_gradient():
    def loss(model, x):
        out = model(x)
        out.register_hook(lambda g: g.clamp(-0.1, 0.1) if g.max() > 0 else None)
        return out.square().mean()

    return trained(net(), loss)


@case
def raised_and_caught_by_value():
    def build(x):
        try:
            if x[0, 0] > 0:
                raise ValueError("positive")
        except ValueError:
            return x * 3
        return x

    return build
