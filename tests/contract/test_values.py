"""Python that asks for the values of tensors, and what else a static program cannot hold."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function, data, made, same, snapshot
from torchgraph.errors import DataDependent


@pytest.mark.parametrize(
    "touch",
    [
        lambda loss: loss.item(),
        lambda loss: bool(loss > 0),
        lambda loss: float(loss),
        lambda loss: int(loss),
        lambda loss: loss.tolist(),
        lambda loss: loss.detach().numpy(),
        lambda loss: 1 if loss > 0 else 2,
        lambda loss: [0, 1][loss.long()],
        lambda loss: loss[loss > 0],
        lambda loss: f"{loss:.3f}",
        lambda loss: loss.cpu().detach().numpy().sum(),
        lambda loss: range(loss.long()),
        lambda loss: torch.allclose(loss, loss),
        lambda loss: loss.equal(loss),
        lambda loss: max([loss, loss * 2]),
        lambda loss: [x for x in torch.arange(3) if x > 0],
    ],
    ids=[
        "item", "bool", "float", "int", "tolist", "numpy", "if", "index", "mask", "format",
        "cpu numpy", "range", "allclose", "equal", "max", "loop",
    ],
)  # fmt: skip
def test_the_value_of_a_tensor_is_refused_with_the_line(touch):
    model, optimizer = made()

    def function(x):
        loss = model(x).square().mean()
        touch(loss)
        loss.backward()
        return loss

    graph = Function(function, optimizer, model=model)
    before = snapshot(model, optimizer)
    with pytest.raises(DataDependent, match=r"test_values\.py:\d+"):
        graph(*data())
    assert same(snapshot(model, optimizer), before)


@pytest.mark.parametrize(
    "function",
    [torch.nonzero, torch.unique, lambda x: x[x > 0].sum(), lambda x: x.masked_select(x > 0)],
    ids=["nonzero", "unique", "mask", "masked_select"],
)
def test_a_shape_that_depends_on_values_is_refused_or_right(function):
    graph = Function(function)
    for values in ([0.0, 1.0, 1.0], [0.0, 0.0, 2.0], [1.0, 2.0, 3.0]):
        x = torch.tensor(values)
        try:
            got = graph(x)
        except DataDependent:
            continue
        assert torch.equal(got, function(x))


def test_torch_cond_is_refused_and_still_works_in_eager():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))  # here

    with pytest.raises(tg.errors.CaptureError, match=r"(?s)cond.*# here.*torch\.where"):
        Function(function)(torch.ones(2))
    assert torch.equal(function(torch.ones(2)), torch.full((2,), 2.0))


def test_a_sparse_gradient_is_refused_with_a_reason():
    model = nn.Embedding(5, 2, sparse=True)

    def function(index):
        loss = model(index).sum()
        loss.backward()  # here
        return loss

    graph = Function(function, torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    with pytest.raises(tg.errors.CaptureError, match=r"(?s)sparse.*# here.*Fix"):
        graph(torch.tensor([1, 2]))


def test_a_printed_tensor_does_no_harm():
    graph = Function(lambda x: (repr(x), x + 1)[1])
    assert torch.equal(graph(torch.ones(2)), torch.full((2,), 2.0))
