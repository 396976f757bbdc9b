"""Random draws, generators, transforms of torch.func, custom functions, nested steps, threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function, forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import torchgraph as tg
from tests.hostile.kit import Cases, Play, net, pairs, sgd, singles, trains
from torchgraph.errors import NestedGraph, NoProgram, RandomStateTouched

case = Cases()


def draws(draw, **more):
    """A step that draws, and draws before and after each call outside of it."""
    more.setdefault("calls", singles())
    return Play(draw, **more)


# --- draws ----------------------------------------------------------------------------------------


@case
def dropout_and_draws_outside():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    return trains(model, before={n: lambda: torch.randn(n) for n in range(9)})


@case
def seeded_between():
    return draws(
        lambda x: x + torch.randn(4),
        before={5: lambda: torch.manual_seed(5), 7: lambda: torch.manual_seed(5)},
    )


@case
def all_kinds_of_draws():
    def step(x):
        weights = x.abs().sum(0)
        return (
            torch.rand(3),
            torch.randint(0, 9, (4,)),
            torch.randperm(6),
            torch.multinomial(weights, 3),
            torch.bernoulli(torch.sigmoid(x)),
            torch.normal(x, x.abs() + 1),
            torch.poisson(x.abs()),
            torch.empty(3).exponential_(),
            torch.empty(3).cauchy_(),
            torch.empty(3).log_normal_(),
            torch.empty(3).geometric_(0.4),
            functional.rrelu(x, training=True),
            functional.gumbel_softmax(x),
        )

    return draws(step)


@case
def draws_of_a_size_of_data():
    calls = [(torch.ones(3 + (n > 5)),) for n in range(12)]
    return draws(lambda x: torch.randn(int(x.sum())).sum(), calls=calls)


@case
def draws_behind_a_branch():
    def step(x):
        if x.sum() > 0:
            return x + torch.rand(4)
        return x + torch.randn(4)

    return draws(step, calls=singles(14, 2, 4))


@case
def a_branch_by_a_draw():
    def step(x):
        return x * 2 if torch.rand(()) < 0.5 else x + 1

    return draws(step, calls=singles(16))


@case
def stochastic_depth():
    model = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def step(x):
        for layer in model:
            if torch.rand(1).item() < 0.8:
                x = x + layer(x)
        return x

    return draws(step, watched=[model], calls=singles(20))


@case
def a_draw_that_is_not_used():
    def step(x):
        torch.rand(100)
        return x + torch.rand(4)

    return draws(step)


@case
def a_number_drawn_into_python():
    return draws(lambda x: x * torch.rand(()).item())


@case(refused=NoProgram)
def a_generator_of_ones_own():
    generator = torch.Generator().manual_seed(5)
    return draws(lambda x: x + torch.rand(4, generator=generator), watched=[generator])


@case(refused=NoProgram)
def a_generator_as_an_argument():
    generator = torch.Generator().manual_seed(5)
    calls = [(x, generator) for (x,) in singles()]
    return Play(lambda x, generator: x + torch.rand(4, generator=generator), calls=calls)


@case
def the_default_generator_by_name():
    return draws(lambda x: x + torch.rand(4, generator=torch.default_generator))


@case(refused=RandomStateTouched)
def seeded_inside():
    def step(x):
        torch.manual_seed(5)
        return x + torch.rand(4)

    return draws(step)


@case(refused=NoProgram)
def forked():
    def step(x):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            noise = torch.rand(4)
        return x + noise + torch.rand(4)

    return draws(step)


@case
def the_state_saved_and_restored():
    def step(x):
        state = torch.get_rng_state()
        first = torch.rand(4)
        torch.set_rng_state(state)
        return x + first - torch.rand(4)

    return draws(step)


@case(refused=NoProgram)
def the_state_of_another_time():
    state = torch.get_rng_state()

    def step(x):
        torch.set_rng_state(state)
        return x + torch.rand(4)

    return draws(step)


@case
def checkpointed_dropout():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    loss = lambda x, y: functional.mse_loss(checkpoint(model, x, use_reentrant=False), y)  # noqa: E731
    return trains(model, loss)


@case
def checkpointed_by_the_old_way():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))

    def loss(x, y):
        return functional.mse_loss(
            checkpoint(model, x.clone().requires_grad_(), use_reentrant=True), y
        )

    return trains(model, loss)


@case
def distributions():
    def step(x):
        normal = torch.distributions.Normal(x.mean(0), x.std(0))
        found = torch.distributions.Categorical(logits=x)
        action = found.sample()
        beta = torch.distributions.Beta(x.abs() + 0.5, x.abs() + 0.5)
        return normal.rsample(), found.log_prob(action), found.entropy(), beta.rsample()

    return draws(step)


@case(refused=RandomStateTouched)
def drawn_by_another_thread():
    def step(x):
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.rand(4)))
        thread.start()
        thread.join()
        return x + found[0]

    return draws(step)


@case
def computed_by_another_thread():
    model = net()

    def step(x):
        found = []
        thread = threading.Thread(target=lambda: found.append(model(x)))
        thread.start()
        thread.join()
        return found[0] * 2

    return draws(step)


@case
def drawn_by_numpy_into_a_buffer_outside():
    held = torch.zeros(4)
    change = lambda: held.copy_(torch.from_numpy(np.random.rand(4)))  # noqa: E731
    return draws(lambda x: x + held, before={n: change for n in range(9)})  # noqa: C420


# --- transforms -----------------------------------------------------------------------------------


@case
def functional_calls():
    model = net()
    weights = {name: one.detach().clone() for name, one in model.named_parameters()}

    def step(x, y):
        def loss(weights):
            return functional.mse_loss(functional_call(model, weights, x), y)

        grads = grad(loss)(weights)
        for name, one in grads.items():
            weights[name] = weights[name] - 0.1 * one
        return loss(weights)

    return Play(step, [weights])


@case
def gradients_per_sample():
    model = net()

    def step(x, y):
        weights = dict(model.named_parameters())

        def loss(weights, x, y):
            return functional.mse_loss(functional_call(model, weights, x[None]), y[None])

        return vmap(grad(loss), (None, 0, 0))(weights, x, y)

    return Play(step, [model])


@case
def vmapped_draws():
    return draws(lambda x: vmap(lambda row: row + torch.rand(4), randomness="different")(x))


@case
def jacobians():
    model = net()
    return draws(lambda x: (jacrev(model)(x[0]), hessian(lambda v: model(v).sum())(x[0])))


@case
def forward_mode():
    model = net()
    return draws(lambda x: jvp(model, (x,), (torch.ones_like(x),)))


@case
def dual_numbers():
    model = net()

    def step(x):
        with forward_ad.dual_level():
            out = model(forward_ad.make_dual(x, torch.ones_like(x)))
            return forward_ad.unpack_dual(out).tangent

    return draws(step)


@case
def a_vjp_kept():
    def step(x):
        out, back = vjp(torch.sin, x)
        return out, back(torch.ones_like(out))

    return draws(step)


@case
def maml():
    model = net()
    optimizer = sgd(model)

    def step(x, y):
        weights = dict(model.named_parameters())
        inner = functional.mse_loss(functional_call(model, weights, x), y)
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {
            name: one - 0.1 * by for (name, one), by in zip(weights.items(), grads, strict=True)
        }
        loss = functional.mse_loss(functional_call(model, fast, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer])


# --- functions of one's own -----------------------------------------------------------------------


class Reverse(Function):
    """Gradients go back with another sign."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad * ctx.by * Reverse.factor, None


@case
def a_function_of_ones_own():
    model, held = net(), SimpleNamespace(by=1.0)
    loss = lambda x, y: functional.mse_loss(model[2](Reverse.apply(model[0](x), held.by)), y)  # noqa: E731
    return trains(model, loss, before={5: lambda: setattr(held, "by", 3.0)})


@case
def a_number_that_its_backward_reads():
    model = net()
    loss = lambda x, y: functional.mse_loss(model[2](Reverse.apply(model[0](x), 1.0)), y)  # noqa: E731
    change = {
        0: lambda: setattr(Reverse, "factor", 1.0),
        5: lambda: setattr(Reverse, "factor", 3.0),
    }
    return trains(model, loss, before=change)


@case
def straight_through():
    model = net()

    def loss(x, y):
        hidden = model[0](x)
        hard = (hidden > 0).float()
        return functional.mse_loss(model[2](hidden + (hard - hidden).detach()), y)

    return trains(model, loss)


# --- modules --------------------------------------------------------------------------------------


@case
def spectral_norm():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    return trains(model, before={5: model.eval, 7: model.train}, calls=pairs(13))


@case
def orthogonal():
    return trains(nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2)))


@case
def pruned_later():
    model = net()
    change = {
        5: lambda: prune.l1_unstructured(model[0], "weight", 0.5),
        8: lambda: prune.remove(model[0], "weight"),
    }
    return trains(model, before=change, calls=pairs(12))


@case
def lazy_modules():
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.LazyLinear(2))
    return Play(lambda x: model(x), [lambda: len(list(model.parameters()))], calls=singles())


@case(forms="step")
def a_script_changed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            return x * self.scale

    model = torch.jit.script(Scaled())
    return Play(lambda x: model(x), [], {5: lambda: setattr(model, "scale", 2.0)}, singles())


@case
def a_recurrent_network_with_a_state():
    model, held = nn.LSTM(4, 3, batch_first=True), SimpleNamespace(state=None)

    def step(x):
        out, state = model(x[None], held.state)
        held.state = tuple(one.detach() for one in state)
        return out

    return Play(step, [model, held], {6: lambda: setattr(held, "state", None)}, singles(12))


# --- steps in steps -------------------------------------------------------------------------------


@case(refused=NestedGraph)
def a_step_in_a_step():
    inner = tg.step(lambda x: x * 2)
    return Play(lambda x: inner(x) + 1, calls=singles())


@case(refused=NestedGraph)
def a_graph_in_a_step():
    class Inner(tg.Graph):
        def build(self, x):
            return x * 2

    inner = Inner()
    return Play(lambda x: inner(x) + 1, calls=singles())


@case
def recursion():
    def power(x, n):
        return x if n == 0 else power(x, n - 1) * 2

    held = SimpleNamespace(depth=3)
    return Play(
        lambda x: power(x, held.depth),
        before={5: lambda: setattr(held, "depth", 5)},
        calls=singles(),
    )


@case
def a_generator_inside():
    def halves(x):
        while len(x) > 1:
            x = x[: len(x) // 2]
            yield x

    return Play(lambda x: sum(one.sum() for one in halves(x)), calls=singles())


@pytest.mark.parametrize("case", case)
def test_randomness(case):
    case.check()
