"""What a call returns: fresh, detached tensors in the structure that build returned."""

import pytest
import torch

from tests.contract.models import Eval, Function, Train, data, made
from tests.support import settle
from torchgraph.errors import DataDependent
from torchgraph.testing import counters


def test_what_the_caller_does_with_a_list_is_no_part_of_the_step():
    graph = Function(lambda x: [1, (x * 2).tolist()])
    for count in range(6):
        before = counters.replays
        graph(torch.ones(2)).append(count)
        assert (counters.replays > before) == (count >= 2)
    assert graph(torch.ones(2)) == [1, [2, 2]]


def test_outputs_are_detached_and_need_no_gradient():
    model, optimizer = made()
    graph = Train(model, optimizer)
    evaluate = Eval(model)
    for got in [one(*data()) for one in (graph, evaluate) for _ in range(5)]:
        assert got.grad_fn is None
        assert not got.requires_grad
        assert type(got) is torch.Tensor
        assert not got.is_inference()


def test_outputs_are_fresh():
    model, _ = made()
    evaluate = Eval(model.eval())
    x, y = data(2)
    settle(evaluate, x)
    first = evaluate(x)
    kept = first.clone()
    second = evaluate(y)

    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)
    first.zero_()
    second.zero_()
    assert torch.equal(evaluate(x), kept)


def test_a_parameter_returned_is_a_copy_of_its_value_before_the_update():
    model, optimizer = made()

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        return model.first.weight, model.first.weight.view(-1), loss

    graph = Function(function, optimizer, model=model)
    for x in data(6):
        before = model.first.weight.detach().clone()
        weight, flat, _ = graph(x)
        assert type(weight) is torch.Tensor
        assert torch.equal(weight, before)
        assert torch.equal(flat, before.view(-1))
        assert not torch.equal(weight, model.first.weight)
        weight.zero_()
        assert model.first.weight.abs().sum() > 0


def test_a_buffer_returned_is_a_copy():
    model, _ = made()
    graph = Function(lambda x: (model(x), model.norm.running_mean)[1], model=model)
    for x in data(5):
        got = graph(x)
        assert torch.equal(got, model.norm.running_mean)  # after the forward pass wrote it
        got.add_(1)
        assert not torch.equal(got, model.norm.running_mean)


def test_an_input_returned_is_a_copy():
    graph = Function(lambda x: (x, x.t(), x[0]))
    for _ in range(5):
        x = torch.arange(4.0).view(2, 2)
        same, turned, row = graph(x)
        assert torch.equal(same, x)
        assert torch.equal(turned, x.t())
        assert torch.equal(row, x[0])
        same.zero_()
        turned.zero_()
        row.zero_()
        assert torch.equal(x, torch.arange(4.0).view(2, 2))


def test_a_mutated_input_returned():
    graph = Function(lambda x: x.add_(1))
    for _ in range(5):
        x = torch.zeros(2)
        got = graph(x)
        assert torch.equal(x, torch.ones(2))
        assert torch.equal(got, torch.ones(2))
        got.zero_()
        assert torch.equal(x, torch.ones(2))


def test_the_same_tensor_returned_twice():
    def function(x):
        y = x * 2
        return y, y, [y.view(-1)]

    graph = Function(function)
    for _ in range(5):
        one, two, (flat,) = graph(torch.ones(2, 2))
        assert torch.equal(one, two)
        assert torch.equal(flat, one.view(-1))


def test_a_constant_and_an_outside_tensor_returned():
    outside = torch.ones(2)
    graph = Function(lambda: (torch.tensor([1.0, 2.0]), torch.zeros(2), outside, outside[0]))
    for _ in range(5):
        constant, zeros, own, first = graph()
        assert torch.equal(constant, torch.tensor([1.0, 2.0]))
        assert torch.equal(zeros, torch.zeros(2))
        assert torch.equal(own, outside)
        assert torch.equal(first, outside[0])
        for tensor in (constant, zeros, own, first):
            tensor.add_(7)  # must reach neither the program's constants nor the user's tensor
    assert torch.equal(outside, torch.ones(2))


def test_the_gradient_returned():
    model, optimizer = made()
    model.eval()

    def function(x):
        loss = model(x).square().mean()
        loss.backward()
        return model.second.weight.grad, model.second.bias.grad

    graph = Function(function, optimizer, model=model)
    for x in data(6):
        model(x).square().mean().backward()
        expected = [model.second.weight.grad, model.second.bias.grad]
        optimizer.zero_grad(set_to_none=True)
        got = graph(x)
        assert all(map(torch.equal, got, expected))
        assert model.second.weight.grad is None


def test_gradients_of_activations_and_retain_grad():
    model, optimizer = made()
    model.eval()

    def function(x):
        hidden = model.first(x)
        hidden.retain_grad()
        loss = hidden.square().mean()
        loss.backward()
        return hidden.grad, hidden

    graph = Function(function, optimizer, model=model)
    x = data()[0]
    hidden = model.first(x)
    hidden.retain_grad()
    hidden.square().mean().backward()
    expected = hidden.grad
    optimizer.zero_grad(set_to_none=True)

    assert torch.equal(graph(x)[0], expected)


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


def test_a_ring_whose_shapes_change():
    graph = Function(lambda x: x[x > 0])
    graph.config.set_outputs_buffer_size(1)
    one = settle(graph, torch.tensor([1.0, -1.0]))
    two = settle(graph, torch.tensor([1.0, 2.0]))
    assert one.tolist() == [1]
    assert two.tolist() == [1, 2]
    assert graph(torch.tensor([3.0, 4.0])).tolist() == two.tolist() == [3, 4]


def test_what_is_done_to_a_ring_does_not_reach_the_next_call():
    graph = Function(lambda x: x * 2)
    graph.config.set_outputs_buffer_size(1)
    for number in range(6):
        got = graph(torch.full((2,), float(number)))
        assert got.tolist() == [2 * number] * 2
        got.requires_grad_().sum().backward()


SHOWN = {
    "repr": repr,
    "str": lambda t: f"loss {t}",
    "format": lambda t: f"{t.sum():.3f}",
}


@pytest.mark.parametrize(
    ("show", "returned"),
    [(SHOWN["repr"], True), (SHOWN["str"], True), (SHOWN["format"], True), (SHOWN["str"], False)],
)
def test_a_text_of_what_a_tensor_holds(show, returned):
    held = torch.ones(3)

    def function(x):
        text = show(held)
        return {"cosine": x.cos(), "text": text if returned else "epoch"}

    graph = Function(function)
    if returned:
        with pytest.raises(DataDependent, match="text"):
            graph(torch.ones(2))
        return
    for number in range(5):
        found = graph(torch.full((2,), float(number)))
    assert found["text"] == "epoch"
    assert graph.is_compiled
