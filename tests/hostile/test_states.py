"""Parameters, buffers, gradients and modes that are changed between calls, or in the step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.hostile.kit import Cases, Play, net, pairs, sgd, singles, trains
from torchgraph.errors import NoProgram, SharedMemory

case = Cases()


# --- between calls ----------------------------------------------------------------------------


@case
def data_of_another_tensor():
    model = net()
    return trains(model, before={5: lambda: setattr(model[0].weight, "data", torch.ones(3, 4))})


@case
def data_with_other_strides():
    model = net()
    other = torch.randn(4, 3).t()
    return trains(model, before={5: lambda: setattr(model[0].weight, "data", other)})


@case
def data_shared_by_two_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model.append(nn.Linear(2, 2)), model.append(nn.Linear(2, 2))

    def share():
        model[4].weight.data = model[3].weight.data

    return trains(model, before={5: share})


@case
def data_is_a_view_of_another_parameter():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    def share():
        model[1].weight.data = model[0].weight.data[:2]

    return trains(model, before={5: share})


@case(refused=SharedMemory)
def data_swapped_in_the_step():
    model = net()
    spare = [torch.randn(3, 4), torch.randn(3, 4)]

    def body(x, y):
        out = model(x).sum()
        model[0].weight.data, spare[0] = spare[0], model[0].weight.data
        return out

    return Play(body, [model, spare])


@case
def parameter_replaced_but_not_in_the_optimizer():
    model = net()

    def replace():
        model[0].weight = nn.Parameter(torch.ones(3, 4))

    return trains(model, before={5: replace})


@case
def weights_tied_later():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))

    def tie():
        model[2].weight = model[0].weight

    return trains(model, before={5: tie})


@case
def weights_untied_later():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight

    def untie():
        model[2].weight = nn.Parameter(model[0].weight.detach().clone())

    return trains(model, before={5: untie})


@case
def tensors_swapped():
    model, other = net(), nn.Parameter(torch.ones(3, 4))
    return trains(
        model, before={5: lambda: torch.utils.swap_tensors(model[0].weight, other)}, watched=[other]
    )


@case
def load_state_dict_assign():
    model = net()
    state = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    return trains(model, before={5: lambda: model.load_state_dict(state, assign=True)})


@case
def module_moved_to_double():
    model = net()
    calls = [(x.double(), y.double()) if n >= 5 else (x, y) for n, (x, y) in enumerate(pairs(10))]
    return trains(model, before={5: model.double}, calls=calls)


@case
def one_layer_moved_to_bfloat16():
    model = net()

    def loss(x, y):
        return functional.mse_loss(model[2](model[1](model[0](x)).to(model[2].bias.dtype)), y)

    return trains(model, loss, before={5: lambda: model[2].bfloat16()})


@case
def requires_grad_toggled():
    model = net()
    change = {5: lambda: model[0].requires_grad_(False), 7: lambda: model[0].requires_grad_(True)}
    return trains(model, before=change, calls=pairs(11))


@case(forms="step")
def requires_grad_of_a_bias_in_a_list():
    weights = [torch.randn(4, 2), torch.randn(2)]

    def body(x, y):
        loss = (x @ weights[0] + weights[1] - y).square().mean()
        if loss.requires_grad:
            loss.backward()
        return loss

    change = {3: lambda: weights[0].requires_grad_(), 6: lambda: weights[1].requires_grad_()}
    return Play(body, [weights], change, calls=pairs(12))


@case
def a_buffer_reassigned_outside():
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))

    def change():
        model[1].running_mean = torch.full((2,), 5.0)

    return trains(model, before={5: change}, calls=pairs(9))


@case
def a_buffer_reassigned_inside():
    model = net()
    model.register_buffer("average", torch.zeros(2))

    def loss(x, y):
        out = model(x)
        model.average = 0.9 * model.average + 0.1 * out.detach().mean(0)
        return (out - y - model.average).square().mean()

    def reset():
        model.average = torch.ones(2)

    return trains(model, loss, before={6: reset})


@case
def a_buffer_that_becomes_none():
    model = nn.BatchNorm1d(4)

    def change():
        model.running_mean = model.running_var = None

    return Play(lambda x: model(x), [model], {5: change, 6: model.eval}, calls=singles())


@case
def buffers_that_rotate():
    model = nn.Module()
    for name in "abc":
        model.register_buffer(name, torch.randn(4))

    def body(x):
        model.a, model.b, model.c = model.b, model.c, model.a + x.mean(0)
        return model.a * x

    return Play(body, [model], calls=singles())


@case
def buffers_that_swap_places():
    model = nn.Module()
    for name in "ab":
        model.register_buffer(name, torch.randn(4))

    def body(x):
        model.a, model.b = model.b, model.a
        model.a.add_(x.mean(0))
        return model.a - model.b

    return Play(body, [model], calls=singles())


@case
def a_buffer_that_becomes_a_view_of_another():
    model = nn.Module()
    model.register_buffer("a", torch.randn(6, 4))
    model.register_buffer("b", torch.randn(4))

    def body(x):
        model.a.mul_(0.9)
        model.b.add_(x.mean(0))
        return model.a.sum() + model.b.sum()

    def change():
        model.b = model.a[2]

    return Play(body, [model], {5: change}, calls=singles())


@case
def train_and_eval_of_one_submodule():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return trains(model, before={5: model[2].eval, 7: model[1].eval}, calls=pairs(12))


@case(fault="a replay leaves the mode that it found")
def training_set_as_an_attribute_in_the_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))

    def loss(x, y):
        model.eval()
        with torch.no_grad():
            target = model(x)
        model.train()
        return (model(x) - target + y).square().mean()

    return trains(model, loss, before={5: model.eval})


# --- gradients ----------------------------------------------------------------------------------


@case
def grad_set_by_hand_between():
    model = net()
    optimizer = sgd(model)

    def body(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    def change():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)

    return Play(body, [model, optimizer], {4: change, 6: optimizer.zero_grad}, pairs(12))


@case
def grad_is_one_tensor_for_two():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = sgd(model)

    def body(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    def change():
        model[0].weight.grad = model[1].weight.grad

    return Play(body, [model, optimizer], {5: change}, pairs(9))


@case
def grad_that_is_the_parameter_itself():
    model = net()
    optimizer = sgd(model)

    def body(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    def change():
        model[0].weight.grad = model[0].weight.detach()

    return Play(body, [model, optimizer], {5: change}, pairs(9))


@case
def grad_with_other_strides():
    model = net()
    optimizer = sgd(model)

    def body(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    def change():
        model[0].weight.grad = torch.randn(4, 3).t()

    return Play(body, [model, optimizer], {5: change}, pairs(9))


@case
def grad_kept_by_the_caller():
    model, kept = net(), []

    def keep():
        kept.append(model[0].weight.grad)

    return trains(model, before={n: keep for n in range(3, 9)}, watched=[kept])


@case(forms="step")
def grad_accumulates_without_zero_grad():
    model, kept = net(), []

    def body(x, y):
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    def keep():
        kept.append(model[0].weight.grad)

    return Play(body, [model, kept], {n: keep for n in range(3, 9)})


@case(forms="step")
def grad_zeroed_in_place_outside():
    model = net()

    def body(x, y):
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    def zero():
        model.zero_grad(set_to_none=False)

    return Play(body, [model], {4: zero, 6: model.zero_grad}, pairs(10))


@case
def some_grads_none():
    model = net()
    optimizer = sgd(model)

    def body(x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    def change():
        model[0].weight.grad = None

    return Play(body, [model, optimizer], {4: change, 7: change}, pairs(10))


@case(forms="step")
def grads_of_leaves_outside_of_modules():
    leaf = torch.randn(4, requires_grad=True)

    def body(x):
        (x * leaf).sum().backward()
        with torch.no_grad():
            leaf.sub_(leaf.grad, alpha=0.1)

    def change():
        leaf.grad = None

    return Play(body, [leaf], {5: change}, singles())


# --- in-place, views, shapes ----------------------------------------------------------------------


@case
def a_view_of_a_parameter_updated():
    model = net()
    row = model[0].weight.detach()[1]

    def body(x):
        row.mul_(0.9)
        return model(x)

    return Play(body, [model, row], calls=singles())


@case(fault="the view follows the parameter to its new memory")
def a_view_made_before_the_data_moved():
    model = net()
    row = model[0].weight.detach()[1]

    def body(x):
        row.mul_(0.9)
        return model(x)

    def change():
        model[0].weight.data = model[0].weight.data.clone()

    return Play(body, [model, row], {5: change}, calls=singles())


@case(fault="the program fails when it is confirmed")
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
def a_memory_that_grows_up_to_a_size():
    held = {"memory": torch.zeros(1, 4)}

    def body(x):
        held["memory"] = torch.cat([held["memory"], x[:1]])[-4:]
        return held["memory"].sum(0)

    return Play(body, [held], calls=singles(12))


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


@case
def a_global_tensor_rebound_to_a_view():
    held = {"h": torch.zeros(4)}

    def body(x):
        held["h"] = held["h"] * 0.5 + x.mean(0)
        return held["h"]

    return Play(body, [held], {5: lambda: held.update(h=torch.ones(3, 4)[1])}, calls=singles())


@case(refused=NoProgram, fault="what the refused call assigned is left")
def a_carried_tensor_rebound_to_an_input():
    held = {"last": torch.zeros(5, 4)}

    def body(x):
        out = x - held["last"]
        held["last"] = x
        return out

    x = torch.randn(5, 4)
    calls = [(x,) for _ in range(9)]
    return Play(body, [held], {n: lambda: x.add_(1.0) for n in range(2, 9)}, calls)


@case(refused=NoProgram, fault="what the refused call assigned is left")
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
def a_tensor_in_an_attribute_of_an_input():
    calls = [(torch.randn(5, 4),) for _ in range(9)]
    for (x,) in calls:
        x.mask = torch.rand(5, 4) > 0.5
    return Play(lambda x: x * x.mask, calls=calls)


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
def test_states(case):
    case.check()
