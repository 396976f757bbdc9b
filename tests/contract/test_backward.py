"""Autograd in build: as far as it goes in eager, it goes in a Graph."""

import pytest
import torch

from tests.contract.models import (
    Eval,
    Function,
    Train,
    adam,
    beside_eager,
    data,
    made,
    same,
    snapshot,
)
from torchgraph.errors import BackwardWithoutOptimizer, NonScalarBackward, OptimizerWithoutBackward


def several(model, x):
    one = model(x).square().mean()
    one.backward()
    two = model(x * 2).abs().mean()
    two.backward()
    return one + two


def twice_over_one_graph(model, x):
    hidden = model.first(x)
    hidden.sum().backward(retain_graph=True)
    loss = model.second(hidden).square().mean()
    loss.backward()
    return loss


def over_part_of_the_parameters(model, x):
    loss = model(x).square().mean()
    loss.backward(inputs=list(model.second.parameters()))
    return loss


def with_a_gradient(model, x):
    """OneFlow divides by numel here."""
    out = model(x)
    out.backward(gradient=torch.ones_like(out) * 0.5)
    return out


def penalty(model, x):
    x = x.clone().requires_grad_()
    out = model.second(torch.tanh(model.first(x))).sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    loss = out.square() + (gradient.norm(dim=1) - 1).square().mean()
    loss.backward()
    return loss


def assigned(model, x):
    loss = model(x).square().mean()
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient * 0.5
    return loss


def changed(model, x):
    loss = model(x).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.mul_(0.1)
    model.first.bias.grad = None
    model.second.bias.grad = torch.ones_like(model.second.bias)
    return loss


def without_gradients(model, x):
    with torch.no_grad():
        target = model(x)
    loss = (model(x) - target.detach()).square().mean() + model(x).sum()
    loss.backward()
    return loss


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x > 0) * 0.5


def own_function(model, x):
    loss = Clipped.apply(model.first(x)).square().mean()
    loss.backward()
    return loss


def saved_tensor_hooks(model, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        loss = model.second(torch.tanh(model.first(x))).square().mean()
    loss.backward()
    return loss


def functional_transforms(model, x):
    parameters = dict(model.second.named_parameters())

    def loss(parameters, row):
        return torch.func.functional_call(model.second, parameters, (row,)).square().sum()

    with torch.no_grad():
        hidden = torch.tanh(model.first(x))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, hidden)
    out = model(x).square().mean()
    out.backward()
    return out + each["weight"].sum()


def autocast(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = out.float().square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize(
    "build",
    [
        *(several, twice_over_one_graph, over_part_of_the_parameters, with_a_gradient, penalty),
        *(assigned, changed, without_gradients, own_function, saved_tensor_hooks),
        *(functional_transforms, autocast),
    ],
)
def test_a_backward_pass_is_eagers(build):
    done = beside_eager(build, batches=data(4))
    assert (done.recorded, done.replayed) == (1, 2)


def test_an_optimizer_of_part_of_the_model_leaves_the_rest():
    done = beside_eager(optimizer=lambda model: adam(model.second))
    assert all(p.grad is None for p in done.model.parameters())


def test_optimizer_without_backward():
    model, optimizer = made()
    graph = Function(lambda x: model(x).sum(), optimizer, model=model)
    before = snapshot(model, optimizer)
    with pytest.raises(OptimizerWithoutBackward):
        graph(*data())
    assert same(snapshot(model, optimizer), before)


@pytest.mark.parametrize(
    ("make", "configure"),
    [(adam, None), (lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9), "set_clip_grad_norm")],
)
def test_a_late_step_without_backward_updates_nothing(make, configure):
    """A batch that is thrown away: the schedule goes on, and so does the training."""
    (model, _), (twin, _) = made(), made()
    optimizer, other = make(model), make(twin)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, other)]

    def loss_of(model, x):
        loss = model(x).square().mean()
        if x.abs().max() < 50:
            loss.backward()
        return loss

    graph = Function(lambda x: loss_of(model, x), optimizer, model=model)
    if configure is not None:
        getattr(graph.config, configure)(0.5)
    for number, x in enumerate(data(12)):
        x = x * 1000 if number in (5, 8, 9) else x
        other.zero_grad()
        torch.manual_seed(number)
        expected = loss_of(twin, x)
        if configure is not None:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        other.step()
        torch.manual_seed(number)
        got = graph(x)
        for schedule in schedules:
            schedule.step()
        assert got.equal(expected)
        assert same(snapshot(model, optimizer)[1:], snapshot(twin, other)[1:])
        assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert graph._runner.cache.hits > 4


@pytest.mark.parametrize("backward", [torch.Tensor.backward, torch.autograd.backward])
def test_backward_without_optimizer(backward):
    model, _ = made()

    def function(x):
        loss = model(x).square().mean()
        backward(loss)
        return loss

    graph = Function(function, model=model)
    before = snapshot(model)
    with pytest.raises(BackwardWithoutOptimizer):
        graph(*data())
    assert same(snapshot(model), before)
    assert all(p.grad is None for p in model.parameters())


def test_non_scalar_backward_names_the_line():
    model, optimizer = made()

    def function(x):
        model(x).backward()  # here

    graph = Function(function, optimizer, model=model)
    with pytest.raises(NonScalarBackward, match=r"\(5, 2\)(.|\n)*test_backward.py(.|\n)*# here"):
        graph(*data())


def test_backward_under_no_grad_is_torchs_own_error():
    model, optimizer = made()

    def function(x):
        with torch.no_grad():
            model(x).sum().backward()

    with pytest.raises(RuntimeError, match="does not require grad"):
        Function(function, optimizer, model=model)(*data())


def test_calls_under_no_grad_and_inference_mode():
    model, _ = made()
    graph = Eval(model.eval())
    expected = model(*data()).detach()
    for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with mode:
            got = graph(*data())
        assert torch.equal(got, expected)


def test_a_training_call_under_no_grad_is_refused_or_right():
    model, optimizer = made()
    graph = Train(model, optimizer)
    graph(*data())
    before = snapshot(model, optimizer)
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        graph(*data())  # as in eager
    assert same(snapshot(model, optimizer), before)
    graph(*data())


def test_autocast_around_the_call():
    model, _ = made()
    evaluate = Function(lambda x: model.first(x), model=model)
    x = data()[0]
    assert evaluate(x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert evaluate(x).dtype is torch.bfloat16
    assert evaluate(x).dtype is torch.float32
