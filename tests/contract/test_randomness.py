"""Random draws: the same numbers in the same order as eager, whatever else happens."""

import random
import threading

import pytest
import torch
from torch import nn

from tests.contract.models import Function, data, made, same
from torchgraph.errors import RandomStateTouched


def test_many_kinds_of_draws_in_order():
    def function(x):
        a = torch.rand(3)
        b = torch.randn_like(x)
        torch.rand(7)  # whose value nobody uses
        c = torch.randint(10, (3,))
        d = torch.bernoulli(torch.full((3,), 0.5))
        e = torch.randperm(5)
        f = torch.empty(3).uniform_(-1, 1)
        g = torch.empty(3).normal_(0, 2)
        h = torch.multinomial(torch.ones(4), 2)
        i = torch.empty(3).exponential_()
        j = nn.functional.dropout(x, 0.3)
        k = torch.rand(3)
        return a, b, c, d, e, f, g, h, i, j, k

    graph = Function(function)
    torch.manual_seed(1)
    expected = [function(torch.ones(3)) for _ in range(5)]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    assert same([graph(torch.ones(3)) for _ in range(5)], expected)
    assert torch.equal(torch.get_rng_state(), after)


def test_a_build_that_seeds_is_refused():
    def function(x):
        torch.manual_seed(0)
        return torch.rand(2)

    state = torch.get_rng_state()
    with pytest.raises(RandomStateTouched):
        Function(function)(torch.ones(1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["python", "numpy"])
def test_draws_that_a_program_cannot_repeat_are_refused(kind):
    numpy = pytest.importorskip("numpy")

    def function(x):
        if kind == "python":
            return x * random.random()
        return x * float(numpy.random.rand())

    python = random.getstate()
    with pytest.raises(RandomStateTouched):
        Function(function)(torch.ones(2))
    assert random.getstate() == python


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_dropout_in_a_checkpointed_region(use_reentrant, preserve):
    model, optimizer = made()
    twin, other = made()

    def function(m, x):
        hidden = torch.utils.checkpoint.checkpoint(
            lambda x: m.drop(m.first(m.drop(x))),
            x.requires_grad_(),
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve,
        )
        loss = m.drop(hidden).square().mean()
        loss.backward()
        return loss

    graph = Function(lambda x: function(model, x.clone()), optimizer, model=model)
    torch.manual_seed(1)
    got = [graph(x) for x in data(3)]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    expected = []
    for x in data(3):
        expected.append(function(twin, x.clone()).detach())
        other.step()
        other.zero_grad()
    assert same(got, expected)
    assert same(model.state_dict(), twin.state_dict())
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_memory_that_a_repeated_draw_fills(kind):
    drop, weight = kind(0.3), torch.ones(3, 4, requires_grad=True)

    def function(x):
        hidden = torch.utils.checkpoint.checkpoint(drop, x * weight, use_reentrant=False)
        return torch.autograd.grad(hidden.square().sum(), weight)[0]

    graph = Function(function)
    for number in range(5):
        torch.manual_seed(number)
        got = graph(torch.randn(3, 4))
        torch.manual_seed(number)
        assert torch.equal(got, function(torch.randn(3, 4)))
    assert graph.is_compiled


def test_draws_after_a_state_that_build_got():
    def function(x):
        state = torch.get_rng_state()
        first = torch.rand(3).mul_(2)
        torch.set_rng_state(state)
        return x * first, torch.rand(3), torch.bernoulli(torch.full((4,), 0.5))

    graph = Function(function)
    for seed in range(3):
        torch.manual_seed(seed)
        got = graph(torch.ones(3))
        torch.manual_seed(seed)
        assert same(got, function(torch.ones(3)))


def test_a_state_that_is_set_back_unseen_is_refused():
    generator = torch.default_generator

    def function(x):
        before = generator.get_state()
        y = torch.rand(3)
        generator.set_state(before)
        return x + y + torch.rand(3)

    state = torch.get_rng_state()
    with pytest.raises(RandomStateTouched):
        Function(function)(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_another_thread_has_the_real_states():
    found = []

    def elsewhere():
        found.append(torch.get_rng_state())
        torch.set_rng_state(found[0])

    def function(x):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return x + torch.rand(3)

    torch.manual_seed(0)
    expected = torch.get_rng_state()
    Function(function)(torch.ones(3))
    assert torch.equal(found[0], expected)


def test_states_that_a_program_cannot_have():
    state = torch.get_rng_state()

    def foreign(x):
        torch.set_rng_state(state)
        return x

    def other_draw(x):
        before = torch.get_rng_state()
        y = torch.rand(3)
        torch.set_rng_state(before)
        return x + y + torch.rand(1)

    def left_behind(x):
        before = torch.get_rng_state()
        y = torch.rand(3)
        torch.set_rng_state(before)
        return x + y

    for function, said in (
        (foreign, "did not get"),
        (other_draw, "other numbers"),
        (left_behind, "earlier state"),
    ):
        with pytest.raises(RandomStateTouched, match=said):
            Function(function)(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_build_that_raised_leaves_the_generators_alone():
    def function(x):
        torch.rand(3)
        random_state.append(torch.get_rng_state())
        raise ValueError("mine")

    random_state: list = []
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="mine"):
        Function(function)(torch.ones(1))
    assert torch.equal(torch.get_rng_state(), before)
