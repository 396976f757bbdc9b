"""What steps return: views, structures, results that are kept, changed and hooked by the caller."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.cases.plays import Play, net, pairs, sgd, singles, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


def returns(give, watched=(), before=None, calls=None):
    """A step that returns what ``give`` does, and nothing more."""
    return Play(give, watched, before or {}, calls or singles())


# --- views ----------------------------------------------------------------------------------------


@case
def two_views_of_each_other():
    def give(x):
        out = x * 2
        return out, out[0], out.t()

    return returns(give)


@case
def the_same_tensor_twice():
    def give(x):
        out = x * 2
        return {"a": out, "b": [out, out]}

    return returns(give)


@case(forms="step")
def results_changed_by_the_caller():
    kept = []

    def give(x):
        out = x * 2
        kept.append(out)
        return out, out[0]

    play = returns(give, [kept])

    def around(call):
        out, row = call()
        out.add_(1)
        return out, row

    play.around = around
    return play


@case
def a_constant_returned_and_changed_by_the_caller():
    play = returns(lambda x: (torch.arange(4.0), x.sum()))

    def around(call):
        out, total = call()
        out.add_(1)
        return out, total

    play.around = around
    return play


case.rows(
    {
        "the_input": lambda: returns(lambda x: x),
        "a_view_of_the_input": lambda: returns(lambda x: (x[1:], x.t(), x.view(-1))),
        "strided_results": lambda: returns(
            lambda x: ((x * 2).t(), (x * 2)[::2, 1:], torch.empty(4, 5).t().copy_(x))
        ),
    },
)


@case
def a_carried_result_changed_by_the_caller():
    held = {"sum": torch.zeros(4)}

    def step(x):
        held["sum"] = held["sum"] + x.sum(0)
        return x.sum()

    return Play(step, [held], {n: lambda: held["sum"].mul_(0.5) for n in range(1, 9)}, singles())


@case
def a_result_that_is_the_next_argument():
    box = [torch.ones(4)]

    def step(x):
        return x * 1.5

    play = Play(lambda: step(box[0]), [box], calls=[() for _ in range(9)])

    def around(call):
        box[0] = call()
        return box[0]

    play.around = around
    return play


@case
def out_is_an_argument():
    calls = [(torch.randn(4), torch.zeros(4)) for _ in range(9)]
    return returns(lambda x, out: torch.mul(x, 2, out=out), calls=calls)


# --- gradients ------------------------------------------------------------------------------------


@case(slow=True)
def gradients_returned():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        return grads

    return Play(step, [model, optimizer])


@case(forms="step")
def gradients_returned_and_changed_by_the_caller():
    model = net()

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    play = Play(step, [model])

    def around(call):
        grads = call()
        grads[0].zero_()
        return grads

    play.around = around
    return play


@case
def autograd_grad_of_the_input():
    model = net()

    def step(x, y):
        x = x.requires_grad_()
        return torch.autograd.grad(functional.mse_loss(model(x), y), x)

    return Play(step, [model])


@case(forms="step")
def a_retained_gradient():
    model = net()

    def step(x, y):
        hidden = model[0](x)
        hidden.retain_grad()
        functional.mse_loss(model[2](hidden), y).backward()
        return hidden.grad

    return Play(step, [model])


@case(forms="step")
def the_gradient_of_an_input():
    model = net()
    calls = [(x.requires_grad_(), y) for x, y in pairs()]

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        return x.grad * 2

    return Play(step, [model], calls=calls)


@case(forms="step")
def one_input_again_and_again():
    model = net()
    x, y = pairs(1)[0]
    x.requires_grad_()

    def step(x, y):
        functional.mse_loss(model(x), y).backward()
        return x.grad.sum()

    return Play(step, [model, x], {6: lambda: setattr(x, "grad", None)}, [(x, y)] * 10)


@case(forms="step")
def hooks_on_what_is_computed():
    model, seen = net(), {}

    def step(x, y):
        hidden = model[0](x)
        hidden.register_hook(lambda grad: seen.update(norm=grad.norm()) or grad * 2)
        loss = functional.mse_loss(model[2](hidden), y)
        loss.backward()
        return loss

    return Play(step, [model, seen])


@case
def hidden_states_by_a_forward_hook():
    model, seen = net(), {}
    model[0].register_forward_hook(lambda module, args, out: seen.update(hidden=out.detach()))
    return trains(model, watched=[seen])


@case
def attributes_on_results():
    def give(x):
        out = x * 2
        out.kind = "doubled"
        return out.sum(), out.kind

    return returns(give)


case.rows(
    {
        "a_result_of_zero_size": lambda: returns(
            lambda x: (x[:0], x[:, :0].sum(1), torch.empty(0, 3))
        ),
        "a_result_in_other_dtypes": lambda: returns(
            lambda x: (x.half(), x.bfloat16(), x > 0, x.long(), x.to(torch.complex64).conj())
        ),
    },
)


@case
def negative_views():
    def give(x):
        z = torch.complex(x, x + 1)
        return z.conj().imag, z.conj() * 2, z.real

    return returns(give)


@pytest.mark.parametrize("case", case)
def test_results(case):
    case.check()
