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
    squared,
)
from torchgraph.errors import BackwardWithoutOptimizer, OptimizerWithoutBackward


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


def saved_tensor_hooks(model, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        loss = model.second(torch.tanh(model.first(x))).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize(
    "build",
    [
        *(several, twice_over_one_graph, over_part_of_the_parameters, with_a_gradient),
        *(assigned, changed, without_gradients, saved_tensor_hooks),
    ],
)
def test_a_backward_pass_is_eagers(build):
    done = beside_eager(build, batches=data(4))
    assert (done.recorded, done.replayed) == (1, 2)


def no_loss(model, x):
    return model(x).sum()


def under_no_grad(model, x):
    with torch.no_grad():
        return squared(model, x)


@pytest.mark.parametrize(
    ("build", "trains", "error"),
    [
        (no_loss, True, OptimizerWithoutBackward),
        (squared, False, BackwardWithoutOptimizer),
        (lambda *args: torch.autograd.backward(no_loss(*args)), False, BackwardWithoutOptimizer),
        (under_no_grad, True, RuntimeError),  # as in eager
    ],
)
def test_an_error_of_autograd_changes_nothing(build, trains, error):
    model, optimizer = made()
    graph = Function(lambda x: build(model, x), *([optimizer] if trains else []), model=model)
    before = snapshot(model, optimizer)
    with pytest.raises(error) as raised:
        graph(*data())
    assert raised.type is error
    assert same(snapshot(model, optimizer), before)
    assert all(p.grad is None for p in model.parameters())


def test_an_optimizer_of_part_of_the_model_leaves_the_rest():
    done = beside_eager(optimizer=lambda model: adam(model.second))
    assert all(p.grad is None for p in done.model.parameters())


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


def test_modes_around_the_call():
    model, optimizer = made()
    graph, train = Eval(model.eval()), Train(model, optimizer)
    x = data()[0]
    expected = model(x).detach()
    for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with mode:
            assert torch.equal(graph(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert graph(x).dtype is torch.bfloat16
    assert graph(x).dtype is torch.float32
    train(x)
    before = snapshot(model, optimizer)
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        train(x)  # as in eager
    assert same(snapshot(model, optimizer), before)
    train(x)
