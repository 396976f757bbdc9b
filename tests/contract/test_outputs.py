"""What a call returns: fresh, detached tensors in the structure that build returned."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.contract.models import Eval, Function, Train, data, made
from tests.support import settle
from torchgraph.errors import DataDependent
from torchgraph.testing import counters


def test_what_the_caller_does_with_a_list_is_no_part_of_the_step():
    graph = Function(lambda x: [1, (x * 2).tolist()])
    for count in range(6):
        with counters.expect(replays=count >= 2):
            graph(torch.ones(2)).append(count)
    assert graph(torch.ones(2)) == [1, [2, 2]]


def test_outputs_are_detached_and_need_no_gradient():
    model, optimizer = made()
    for graph in (Train(model, optimizer), Eval(model)):
        for x in data(5):
            got = graph(x)
            assert got.grad_fn is None
            assert not got.requires_grad
            assert type(got) is torch.Tensor
            assert not got.is_inference()


OUTSIDE = torch.ones(2)
Step = Callable[[torch.Tensor], Any]
FRESH: dict[str, Step] = {
    "computed": lambda x: [x * 2],
    "input": lambda x: [x, x.t(), x[0]],
    "mutated input": lambda x: [x.add_(1)],
    "twice": lambda x: [y := x * 2, y.view(-1)],
    "constants": lambda x: [torch.tensor([1.0, 2.0]), torch.zeros(2)],
    "of outside": lambda x: [OUTSIDE, OUTSIDE[0]],
}


@pytest.mark.parametrize("name", FRESH)
def test_what_the_caller_does_to_results_reaches_nothing_else(name):
    graph = Function(FRESH[name])
    for number in range(5):
        x = torch.arange(4.0).view(2, 2) + number
        given = x.clone()
        expected = [one.clone() for one in FRESH[name](given)]
        kept = given.clone()
        got = graph(x)
        assert all(map(torch.equal, got, expected))
        for one in got:
            one.zero_()
        assert torch.equal(x, kept)
        assert torch.equal(OUTSIDE, torch.ones(2))


def test_results_of_two_calls_share_nothing():
    model, _ = made()
    evaluate = Eval(model.eval())
    x, y = data(2)
    settle(evaluate, x)
    first = evaluate(x)
    kept = first.clone()
    second = evaluate(y)

    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)


def test_a_parameter_and_a_buffer_are_copies_of_their_values_before_the_update():
    model, optimizer = made()

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        return model.first.weight, model.first.weight.view(-1), model.norm.running_mean

    graph = Function(function, optimizer, model=model)
    for x in data(6):
        before = model.first.weight.detach().clone()
        weight, flat, mean = graph(x)
        assert type(weight) is torch.Tensor
        assert torch.equal(weight, before)
        assert torch.equal(flat, before.view(-1))
        assert torch.equal(mean, model.norm.running_mean)  # after the forward pass wrote it
        assert not torch.equal(weight, model.first.weight)
        weight.zero_()
        mean.add_(1)
        assert model.first.weight.abs().sum() > 0
        assert not torch.equal(mean, model.norm.running_mean)


def test_gradients_of_parameters_and_of_activations():
    model, optimizer = made()
    model.eval()

    def function(x):
        hidden = model.first(x)
        hidden.retain_grad()
        model.second(hidden).square().mean().backward()
        return hidden.grad, model.second.weight.grad, model.second.bias.grad

    graph = Function(function, optimizer, model=model)
    for x in data(6):
        expected = function(x)
        optimizer.zero_grad(set_to_none=True)
        assert all(map(torch.equal, graph(x), expected))
        assert model.second.weight.grad is None


def test_strides_and_dtypes_of_outputs_are_eagers():
    def function(x):
        y = x * 2
        wide = y.expand(3, 2, 2)
        return x.t(), y.t(), wide, x.to(torch.float16), x > 0, x.long(), torch.view_as_complex(y)

    graph = Function(function)
    x = torch.randn(2, 2)
    for got, expected in zip(settle(graph, x), function(x), strict=True):
        assert torch.equal(got, expected)
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())


def test_a_ring_of_outputs():
    model, optimizer = made()

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        return {"loss": loss, "weight": model.first.weight, "number": 3}

    graph = Function(function, optimizer, model=model)
    graph.config.set_outputs_buffer_size()
    settle(graph, *data())
    kept = []
    for x in data(5):
        before = model.first.weight.detach().clone()
        got = graph(x)
        assert torch.equal(got["weight"], before)
        assert got["number"] == 3
        assert not got["loss"].requires_grad
        kept.append(got)
    assert len({got["loss"].data_ptr() for got in kept}) == 2
    assert torch.equal(kept[2]["weight"], kept[4]["weight"])
    assert not torch.equal(kept[3]["weight"], kept[4]["weight"])
    graph.config.set_outputs_buffer_size(None)
    assert settle(graph, x)["loss"].data_ptr() not in {got["loss"].data_ptr() for got in kept}


def test_a_ring_whose_shapes_change_and_what_is_done_to_it():
    graph = Function(lambda x: x[x > 0])
    graph.config.set_outputs_buffer_size(1)
    one = settle(graph, torch.tensor([1.0, -1.0]))
    two = settle(graph, torch.tensor([1.0, 2.0]))
    assert one.tolist() == [1]
    assert two.tolist() == [1, 2]
    assert graph(torch.tensor([3.0, 4.0])).tolist() == two.tolist() == [3, 4]
    for number in range(1, 7):
        got = graph(torch.full((2,), float(number)))
        assert got.tolist() == [number] * 2
        got.requires_grad_().sum().backward()


SHOWN: dict[str, Callable[[torch.Tensor], str]] = {
    "repr": repr,
    "str": lambda t: f"loss {t}",
    "format": lambda t: f"{t.sum():.3f}",
}


@pytest.mark.parametrize("show", SHOWN)
def test_a_text_of_what_a_tensor_holds(show):
    """A text that is returned is refused; one that is only made is no obstacle."""
    held = torch.ones(3)
    with pytest.raises(DataDependent, match="text"):
        Function(lambda x: {"cosine": x.cos(), "text": SHOWN[show](held)})(torch.ones(2))
    graph = Function(lambda x: (SHOWN[show](held), x.cos())[1])
    settle(graph, torch.ones(2))
    assert graph.is_compiled


TWO_OF_ONE: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "returned twice": lambda one, given: (one.detach(), one.detach()),
    "put into an argument twice": lambda one, given: given.update(a=one.detach(), b=one.detach()),
    "put there and returned": lambda one, given: (given.update(a=one.detach()), one.detach()),
    "the same tensor": lambda one, given: [kept := one.detach(), kept],
}


@pytest.mark.parametrize("name", TWO_OF_ONE)
def test_two_tensors_of_one_value_are_two_as_in_eager(name, recwarn):
    def tensors(function: Callable[..., Any]) -> list[torch.Tensor]:
        given: dict[str, Any] = {}
        returned = function(torch.ones(3), given)
        return [one for one in (*(returned or ()), *given.values()) if one is not None]

    graph = Function(lambda x, given: TWO_OF_ONE[name](x.cos(), given))
    graph.config.set_look_again(2)
    one, two = tensors(lambda x, given: TWO_OF_ONE[name](x.cos(), given))
    expected = one is two, True
    with counters.expect(replays=6):
        found = [tensors(graph) for _ in range(8)]
    assert [(a is b, a.data_ptr() == b.data_ptr()) for a, b in found] == [expected] * 8
    assert not list(recwarn)
