"""Autograd in build: as far as it goes in eager, it goes in a Graph."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.contract.models import Eval, Function, adam, data, made, same, snapshot
from torchgraph.errors import BackwardWithoutOptimizer, NonScalarBackward, OptimizerWithoutBackward
from torchgraph.testing import counters


def assert_like_eager(function, steps=3, make=adam):
    """``function(model, x)`` does forward and backward; the rest is the same for all."""
    (model, _), (twin, _) = made(), made()
    optimizer, other = make(model), make(twin)
    graph = Function(lambda x: function(model, x), optimizer, model=model)
    torch.manual_seed(1)
    expected = []
    for x in data(steps):
        out = function(twin, x)
        expected.append(out.detach().clone())
        other.step()
        other.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    with counters.expect(captures=1):
        got = [graph(x) for x in data(steps)]
    assert same(got, expected)
    assert same(snapshot(model, optimizer)[1:], snapshot(twin, other)[1:])


def test_several_backward_calls():
    def function(model, x):
        one = model(x).square().mean()
        one.backward()
        two = model(x * 2).abs().mean()
        two.backward()
        return one + two

    assert_like_eager(function)


def test_backward_twice_over_one_graph():
    def function(model, x):
        hidden = model.first(x)
        hidden.sum().backward(retain_graph=True)
        loss = model.second(hidden).square().mean()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_backward_over_part_of_the_parameters():
    def function(model, x):
        loss = model(x).square().mean()
        loss.backward(inputs=list(model.second.parameters()))
        return loss

    assert_like_eager(function)


def test_backward_with_a_gradient():
    def function(model, x):
        out = model(x)
        out.backward(gradient=torch.ones_like(out) * 0.5)
        return out

    assert_like_eager(function)  # OneFlow divides by numel here


def test_torch_autograd_backward():
    def function(model, x):
        out = model(x)
        loss, other = out.square().mean(), out.abs().sum()
        torch.autograd.backward([loss, other])
        return loss

    assert_like_eager(function)


def test_autograd_grad_and_assigned_gradients():
    def function(model, x):
        loss = model(x).square().mean()
        parameters = list(model.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient * 0.5
        return loss

    (model, optimizer), (twin, other) = made(), made()
    graph = Function(lambda x: function(model, x), optimizer, model=model)
    torch.manual_seed(1)
    expected = function(twin, *data()).detach()
    other.step()
    torch.manual_seed(1)

    try:
        got = graph(*data())
    except OptimizerWithoutBackward as error:
        pytest.fail(f"autograd.grad is a backward pass, too: {error}")
    assert torch.equal(got, expected)
    assert same(model.state_dict(), twin.state_dict())


def test_a_gradient_penalty_with_create_graph():
    def function(model, x):
        x = x.clone().requires_grad_()
        out = model.second(torch.tanh(model.first(x))).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        loss = out.square() + (gradient.norm(dim=1) - 1).square().mean()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_gradients_changed_in_build():
    def function(model, x):
        loss = model(x).square().mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.mul_(0.1)
        model.first.bias.grad = None
        model.second.bias.grad = torch.ones_like(model.second.bias)
        return loss

    assert_like_eager(function)


def test_zero_grad_in_build():
    def function(model, x):
        model(x).sum().backward()
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_no_grad_detach_and_inference_in_build():
    def function(model, x):
        with torch.no_grad():
            target = model(x)
        loss = (model(x) - target.detach()).square().mean() + model(x).sum()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_an_autograd_function_of_the_user():
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, gradient) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (x > 0) * 0.5

    def function(model, x):
        loss = Clipped.apply(model.first(x)).square().mean()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_an_optimizer_of_part_of_the_model_leaves_the_rest():
    (model, _), (twin, _) = made(), made()
    graph = Function(lambda x: loss_of(model, x), adam(model.second), model=model)
    other = adam(twin.second)
    torch.manual_seed(1)
    got = [graph(x) for x in data(3)]
    torch.manual_seed(1)
    for x, value in zip(data(3), got, strict=True):
        assert torch.equal(loss_of(twin, x).detach(), value)
        other.step()
        twin.zero_grad()
    assert same(model.state_dict(), twin.state_dict())
    assert all(p.grad is None for p in model.parameters())


def loss_of(model, x):
    loss = model(x).square().mean()
    loss.backward()
    return loss


def test_checkpointed_forward_without_random_draws():
    def function(model, x):
        hidden = checkpoint(model.first, x, use_reentrant=False)
        loss = model.second(torch.tanh(hidden)).square().mean()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_saved_tensor_hooks():
    def function(model, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            loss = model.second(torch.tanh(model.first(x))).square().mean()
        loss.backward()
        return loss

    assert_like_eager(function)


def test_functional_transforms():
    def function(model, x):
        parameters = dict(model.second.named_parameters())

        def loss(parameters, row):
            return torch.func.functional_call(model.second, parameters, (row,)).square().sum()

        with torch.no_grad():
            hidden = torch.tanh(model.first(x))
            each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, hidden)
        out = model(x).square().mean()
        out.backward()
        return out + each["weight"].sum()

    assert_like_eager(function)


def test_optimizer_without_backward():
    model, optimizer = made()
    graph = Function(lambda x: model(x).sum(), optimizer, model=model)
    before = snapshot(model, optimizer)
    with pytest.raises(OptimizerWithoutBackward):
        graph(*data())
    assert same(snapshot(model, optimizer), before)


@pytest.mark.parametrize("make", [adam, lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9)])
@pytest.mark.parametrize("configure", [None, "set_clip_grad_norm"])
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
    assert graph._cache.hits > 4


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
    graph = Function(lambda x: loss_of(model, x), optimizer, model=model)
    graph(*data())
    before = snapshot(model, optimizer)
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        graph(*data())  # as in eager
    assert same(snapshot(model, optimizer), before)
    graph(*data())


def test_autocast_around_the_call_and_in_build():
    (model, optimizer), (twin, other) = made(), made()

    def function(m, x):
        with torch.autocast("cpu", torch.bfloat16):
            out = m(x)
        loss = out.float().square().mean()
        loss.backward()
        return loss

    graph = Function(lambda x: function(model, x), optimizer, model=model)
    torch.manual_seed(1)
    expected = []
    for x in data(3):
        expected.append(function(twin, x).detach())
        other.step()
        other.zero_grad()
    torch.manual_seed(1)
    assert same([graph(x) for x in data(3)], expected)
    assert same(model.state_dict(), twin.state_dict())

    evaluate = Function(lambda x: model.first(x), model=model)
    x = data()[0]
    assert evaluate(x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert evaluate(x).dtype is torch.bfloat16
    assert evaluate(x).dtype is torch.float32
