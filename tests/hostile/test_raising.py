"""Steps that raise for what their tensors hold; eager's exception, eager's state."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from tests.cases.plays import Play, net, pairs, sgd, singles, trains, turns
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- what is raised -------------------------------------------------------------------------------


@case(forms="step")
def an_assertion_after_a_write():
    held = torch.zeros(4)

    def step(x):
        held.add_(x[0])
        if x.sum() < 0:
            raise AssertionError("negative")
        return x * 2

    return turns(step, watched=[held])


@case
def raised_after_the_update():
    model = net()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if not x.sum() > 0:
            raise RuntimeError(f"loss is {x.sum().sign()}")
        return loss

    return turns(step, watched=[model, optimizer])


@case(forms="step")
def raised_in_the_first_call():
    model = net()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if x.sum() < 0:
            raise ValueError("too low")
        optimizer.step()

    return turns(step, at=0, watched=[model, optimizer])


@case
def raised_in_the_second_call():
    model = net()
    optimizer = sgd(model)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if x.sum() < 0:
            raise ValueError("too low")

    return turns(step, at=1, watched=[model, optimizer])


@case(forms="step")
def interrupted_by_the_keyboard():
    held = torch.zeros(4)

    def step(x):
        held.add_(x[0])
        if x.sum() < 0:
            raise KeyboardInterrupt
        return x * 2

    return turns(step, watched=[held])


@case
def caught_by_the_step():
    def step(x):
        try:
            if x.sum() < 0:
                raise ValueError("too low")
            return x * 2
        except ValueError:
            return x + 1

    return turns(step)


@case(forms="step")
def finally_runs():
    held = torch.zeros(4)

    def step(x):
        try:
            if x.sum() < 0:
                raise ValueError("too low")
            return x * 2
        finally:
            held.add_(1)

    return turns(step, watched=[held])


# The call of a Graph that raises has changed nothing, that of a function what it has.
@case(forms="step")
def an_op_that_fails_after_a_write():
    held = torch.zeros(3)

    def step(x):
        held.add_(x[0])
        return torch.linalg.cholesky(x)

    calls = [(torch.eye(3) * (1.0 if n != 6 else -1.0),) for n in range(9)]
    return Play(step, [held], calls=calls)


@case(forms="step")
def an_index_out_of_range():
    weight, held = torch.arange(6.0), torch.zeros(())

    def step(i):
        held.add_(1)
        return weight[i]

    return Play(step, [held], calls=[(torch.tensor([1, 2 if n != 6 else 9]),) for n in range(9)])


@case(forms="step")
def a_target_out_of_range():
    model = net()
    calls = [
        (x, torch.tensor([0, 1, 0, 1, 1 if n != 6 else 7])) for n, (x, _) in enumerate(pairs())
    ]
    return trains(model, lambda x, y: functional.cross_entropy(model(x), y), calls=calls)


@case
def the_wrong_shape():
    model = net()
    calls = [(torch.randn(5, 4 if n != 6 else 3), y) for n, (_, y) in enumerate(pairs())]
    return trains(model, calls=calls)


@case
def the_wrong_number_of_arguments():
    return Play(
        lambda x: x * 2, calls=[one if n != 6 else one * 2 for n, one in enumerate(singles())]
    )


@case
def an_attribute_that_is_gone():
    config = SimpleNamespace(scale=2.0)
    change = {5: lambda: delattr(config, "scale"), 6: lambda: setattr(config, "scale", 3.0)}
    return Play(lambda x: x * config.scale, before=change, calls=singles(11))


@case
def no_gradients_any_more():
    model = net()
    change = {5: lambda: model.requires_grad_(False), 7: lambda: model.requires_grad_(True)}
    return trains(model, before=change, calls=pairs(11))


@case(forms="step")
def backward_twice():
    model, held = net(), SimpleNamespace(twice=False)

    def step(x, y):
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        if held.twice:
            loss.backward()
        return loss

    change = {5: lambda: setattr(held, "twice", True), 6: lambda: setattr(held, "twice", False)}
    return Play(step, [model], change, pairs(11))


@case
def stop_iteration_of_a_loader():
    batches = iter([torch.ones(4) * n for n in range(6)])
    return Play(lambda x: x * next(batches), calls=singles())


@pytest.mark.parametrize("case", case)
def test_raising(case):
    case.check()
