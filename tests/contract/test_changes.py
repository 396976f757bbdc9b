"""What the user changes between calls is noticed: modes, parameters, structure, dtypes."""

import pytest
import torch
from torch import nn

from tests.contract.models import Eval, Net, Train, beside_eager, data, eager, made, same, snapshot
from torchgraph.testing import counters


@pytest.mark.parametrize("part", ["", "norm"])
def test_train_and_eval_toggles_are_noticed(part):
    def toggle(number, model, _optimizer):
        model.get_submodule(part).train(number % 2 == 0)

    beside_eager(batches=data(9), before=toggle)


def test_toggling_back_finds_the_old_program():
    model, _ = made()
    graph = Eval(model)
    with counters.expect(captures=2):
        for number in range(6):
            model.train(number % 2 == 0)
            graph(*data())


def test_a_replaced_parameter_is_used_and_trained():
    model, optimizer = made()
    graph = Train(model, optimizer)
    x = data()[0]
    graph(x)
    model.eval()
    model.second.weight = nn.Parameter(torch.ones(2, 6))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    expected = model(x).square().mean().detach()

    assert torch.equal(graph(x), expected)
    assert not torch.equal(model.second.weight, torch.ones(2, 6))
    assert model.second.weight in optimizer.state


def test_a_replaced_parameter_that_the_optimizer_does_not_know_is_used_and_stays():
    model, optimizer = made()
    graph = Train(model, optimizer)
    for x in data(4):
        graph(x)
    old = model.second.bias
    before = old.detach().clone()
    model.second.bias = nn.Parameter(torch.full((2,), 3.0))
    model.eval()
    expected = model(x).square().mean().detach()

    assert torch.equal(graph(x), expected)
    assert torch.equal(model.second.bias, torch.full((2,), 3.0))  # no optimizer updates it
    assert torch.equal(old, before)  # as in eager: it lies nowhere now, and gets no gradient
    model.second.bias = old
    graph(x)
    assert not torch.equal(old, before)


def test_a_replaced_buffer_and_a_removed_one():
    model, _ = made()
    model.eval()
    graph = Eval(model)
    x = data()[0]
    graph(x)
    model.norm.running_mean = torch.ones(6)
    assert torch.equal(graph(x), model(x))
    model.norm = nn.Identity()
    assert torch.equal(graph(x), model(x))


def test_a_sub_module_replaced_added_or_taken_away():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    graph = Eval(model)
    x = data()[0]
    graph(x)
    model[1] = nn.ReLU()
    assert torch.equal(graph(x), model(x))
    model.append(nn.Linear(4, 2))
    assert torch.equal(graph(x), model(x))
    del model[1]
    assert torch.equal(graph(x), model(x))


def test_requires_grad_flipped():
    def flip(number, model, _optimizer):
        model.first.requires_grad_(number not in (2, 3))

    beside_eager(before=flip)


def test_training_goes_on_after_to_float64():
    def train(step, model):
        losses = [step(x) for x in data(2)]
        model.to(torch.float64)
        return losses + [step(x.double()) for x in data(2)]

    model, twin = made()[0], made()[0]
    optimizer, other = (
        torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin)
    )
    torch.manual_seed(1)
    expected = train(lambda x: eager(twin, other, x), twin)
    torch.manual_seed(1)

    assert same(train(Train(model, optimizer), model), expected)
    assert same(snapshot(model, optimizer)[1:], snapshot(twin, other)[1:])


def test_another_dtype_of_the_parameters_with_the_same_inputs():
    class Casts(Net):
        def forward(self, x):
            return super().forward(x.to(self.first.weight.dtype))

    model = Casts().eval()
    graph = Eval(model)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        got = graph(*data())
        assert got.dtype is dtype
        assert torch.equal(got, model(*data()))


def test_a_parameter_given_another_shape_or_layout_in_place():
    model = nn.Linear(4, 4)
    graph = Eval(model)
    x = data()[0]
    graph(x)
    model.weight.data = torch.arange(16.0).view(4, 4).t()
    assert torch.equal(graph(x), model(x))
    model.weight.data, model.bias.data = torch.ones(2, 4), torch.ones(2)
    assert torch.equal(graph(x), model(x))
