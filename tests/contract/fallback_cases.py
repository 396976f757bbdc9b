"""Steps that run in eager and under torch.compile: of some, no program can be made."""

from __future__ import annotations

import io
import json
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
def branch_on_data():
    return lambda x: x * 2 if x.sum() > 0 else x - 1


@case
def item_of_a_number_that_moves():
    return lambda x: x * x.max().item()


@case
def tolist_in_a_loop():
    return lambda x: sum(value * x for value in x[0].tolist())


@case
def float_of_a_loss_in_a_list():
    log: list[float] = []

    def loss(model, x):
        value = squares(model, x)
        log.append(float(value.detach()))
        return value

    return trained(net(), loss)


@case
def written_out():
    return lambda x: (io.StringIO().write(f"{x.sum().item()} {x[0]}"), x * 2)[1]


@case
def json_of_values():
    return lambda x: x + json.loads(json.dumps({"a": x[0, :2].tolist()}))["a"][0]


@case
def while_on_a_tensor():
    def build(x):
        while x.norm() > 1:
            x = x / 2
        return x

    return build


@case
def newton_until_it_converges():
    def build(x):
        root = x.abs() + 1
        for _ in range(50):
            step = (root * root - 2) / (2 * root)
            root = root - step
            if step.abs().max() < 1e-4:
                break
        return root

    return build


@case
def loop_over_a_length_of_the_data():
    def build(x):
        for i in range(int(x.abs().sum()) % 5):
            x = x + i
        return x

    return build


@case
def early_exit():
    def loss(model, x):
        hidden = model[0](x)
        if hidden.mean() > 0:
            return hidden.square().mean()
        return model(x).square().mean()

    return trained(net(), loss)


@case
def nonzero_and_unique():
    return lambda x: (x.gt(0).nonzero(), torch.unique((x * 2).round(), return_counts=True))


@case
def masked_rows():
    return trained(net(), lambda model, x: model(x[x[:, 0] > -9]).mean() + x[x > 0].sum())


@case
def boolean_assignment():
    def build(x):
        y = x.clone()
        y[y > 0.5] = y[y > 0.5] * 2
        return y

    return build


@case
def sorted_by_python():
    return lambda x: torch.stack(sorted(x, key=lambda row: row.sum().item()))


@case
def dictionary_by_value():
    return lambda x: {round(value, 2): x * value for value in x[0, :2].tolist()}


@case
def top_k_of_the_data():
    return lambda x: x.flatten().topk(1 + int(x[0, 0].abs() * 3) % 4).values


@case
def repeated_by_the_data():
    return lambda x: torch.repeat_interleave(x, x[:, 0].abs().long() + 1, 0)


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
def array_protocol():
    return lambda x: x + torch.as_tensor(np.asarray(x).cumsum(0))


@case
def dlpack():
    return lambda x: torch.from_dlpack(x.clone().__dlpack__()) * 2


@case
def escape_that_is_caught():
    def build(x):
        try:
            return torch.from_numpy(x.numpy() + 1)
        except RuntimeError:
            return x

    return build


@case
def callback_of_the_user():
    def hook(values: np.ndarray) -> float:
        return float(values.max())

    return lambda x: x * hook(x.detach().numpy())


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


@case
def custom_function():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x) -> torch.Tensor:
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx, gradient) -> torch.Tensor:
            return gradient * 2

    return trained(net(), lambda model, x: Clipped.apply(model(x)).sum())
