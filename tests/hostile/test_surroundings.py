"""Views, tensors that are carried, and what surrounds a call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from tests.cases.plays import Play, net, singles, trains
from tests.cases.table import Table
from torchgraph.errors import NoProgram

case = Table("step graph", says=None)


# --- in-place, views, shapes ----------------------------------------------------------------------


@case
def a_view_made_before_the_data_moved():
    model = net()
    row = model[0].weight.detach()[1]

    def body(x):
        row.mul_(0.9)
        return model(x)

    def change():
        model[0].weight.data = model[0].weight.data.clone()

    return Play(body, [model, row], {5: change}, calls=singles())


@case(refused=NoProgram)
def views_that_overlap():
    base = torch.randn(8)
    left, right = base[:5], base[3:]

    def body(x):
        left.add_(x.sum())
        right.mul_(0.5)
        return left + right

    return Play(body, [base], calls=singles())


@case
def a_bias_that_grows():
    held = {"memory": torch.zeros(1, 4)}

    def body(x):
        held["memory"] = torch.cat([held["memory"], x[:1]])
        return held["memory"].sum(0)

    return Play(body, [held], calls=singles())


@case
def a_buffer_resized():
    buffer = torch.zeros(2, 4)

    def body(x):
        buffer.add_(x[:2].sum())
        return buffer.sum(0)

    return Play(body, [buffer], {5: lambda: buffer.resize_(3, 4).zero_()}, calls=singles())


@case
def a_tensor_set_to_other_memory():
    held, other = torch.zeros(4), torch.ones(4)

    def body(x):
        held.add_(x.sum(0))
        return held * 2

    return Play(body, [held, other], {5: lambda: held.set_(other)}, calls=singles())


@case(forms="step")
def a_carried_tensor_rebound_to_an_input():
    held = {"last": torch.zeros(5, 4)}

    def body(x):
        out = x - held["last"]
        held["last"] = x
        return out

    x = torch.randn(5, 4)
    calls = [(x,) for _ in range(9)]
    return Play(body, [held], {n: lambda: x.add_(1.0) for n in range(2, 9)}, calls)


@case(forms="step")
def a_carried_view_of_an_input():
    held = {"last": torch.zeros(4)}

    def body(x):
        out = x - held["last"]
        held["last"] = x[0]
        return out

    x = torch.randn(5, 4)
    return Play(body, [held], {n: lambda: x.mul_(2.0) for n in range(9)}, [(x,) for _ in range(9)])


@case
def a_copy_of_the_model_in_the_step():
    model = net()

    def loss(x, y):
        with torch.no_grad():
            target = copy.deepcopy(model)(x)
        return (model(x) - target - y).square().mean()

    return trains(model, loss)


# --- what surrounds -------------------------------------------------------------------------------


@case
def default_dtype_set_between():
    def body(x):
        return x * torch.ones(4) + torch.arange(4.0)

    def around(call):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if next(numbers) >= 4 else before)
        try:
            return call()
        finally:
            torch.set_default_dtype(before)

    numbers = iter(range(99))
    return Play(body, calls=singles(), around=around)


@case(forms="step")
def no_grad_around_some_calls():
    model, numbers = net(), iter(range(99))

    def body(x, y):
        loss = functional.mse_loss(model(x), y)
        if loss.requires_grad:
            loss.backward()
        return loss

    def around(call):
        with torch.set_grad_enabled(next(numbers) not in (4, 5)):
            return call()

    return Play(body, [model], around=around)


@case(forms="step")
def inference_mode_around_some_calls():
    model, numbers = net(), iter(range(99))
    held = {"sum": torch.zeros(2)}

    def body(x, y):
        held["sum"] = model(x).sum(0).detach()
        return held["sum"] * 2

    def around(call):
        with torch.inference_mode(next(numbers) in (4, 5)):
            return call()

    return Play(body, [model, held], around=around)


@case
def autocast_around_later_calls():
    model, numbers = net(), iter(range(99))
    play = trains(model)

    def around(call):
        with torch.autocast("cpu", torch.bfloat16, enabled=next(numbers) >= 4):
            return call()

    play.around = around
    return play


@case
def deterministic_algorithms_set_later():
    numbers = iter(range(99))

    def body(x):
        out = torch.zeros(5, 4)
        out.index_put_((torch.tensor([0, 1, 0]),), x[:3], accumulate=True)
        return out

    def around(call):
        torch.use_deterministic_algorithms(next(numbers) >= 4)
        try:
            return call()
        finally:
            torch.use_deterministic_algorithms(False)

    return Play(body, calls=singles(), around=around)


@case
def an_attribute_of_an_input():
    calls = [(torch.randn(5, 4),) for _ in range(9)]
    for number, (x,) in enumerate(calls):
        x.scale = 1.0 if number < 5 else 2.0
    return Play(lambda x: x * x.scale, calls=calls)


@case
def a_tensor_in_an_attribute_of_a_later_input():
    calls = [(torch.randn(5, 4),) for _ in range(9)]
    for (x,) in calls[5:]:
        x.mask = torch.rand(5, 4) > 0.5
    return Play(lambda x: x * getattr(x, "mask", 1.0), calls=calls)


@case
def an_attribute_of_a_parameter():
    model = net()
    model[0].weight.scale = 1.0

    def loss(x, y):
        return functional.mse_loss(model(x), y) * model[0].weight.scale

    return trains(model, loss, before={5: lambda: setattr(model[0].weight, "scale", 2.0)})


@case
def saved_tensors_hooks_around():
    model, numbers = net(), iter(range(99))
    play = trains(model)

    def around(call):
        factor = 1.0 if next(numbers) < 5 else 1.5
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * factor, lambda t: t):
            return call()

    play.around = around
    return play


@case
def mode_of_functions_around():
    numbers = iter(range(99))

    class Doubles(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.tanh else out

    def around(call):
        if next(numbers) not in (5, 6):
            return call()
        with Doubles():
            return call()

    return Play(lambda x: torch.tanh(x), calls=singles(), around=around)


@pytest.mark.parametrize("case", case)
def test_surroundings(case):
    case.check()
