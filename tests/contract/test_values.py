"""Python that asks for the values of tensors, and what else a static program cannot hold."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import Function, data, made, same, snapshot
from torchgraph.errors import DataDependent
from torchgraph.testing import counters

READS = {
    "item": lambda x: x * x.sum().item(),
    "bool": lambda x: x * bool(x.sum() > 0),
    "int": lambda x: x + int(x.sum()),
    "tolist": lambda x: x[x.argmax().tolist() :],
    "if": lambda x: x * 2 if x.sum() > 0 else x * 3,
    "index": lambda x: x + [5, 6, 7][x.argmax()],
    "mask": lambda x: x[x > 0],
    "format": lambda x: x + len(f"{x.sum().item():.0f}"),
    "range": lambda x: sum((x for _ in range(x.argmax())), x),
    "equal": lambda x: x + x.equal(x.abs()),
    "max": lambda x: max([x.sum(), x[0]]),
    "while": lambda x: _halved(x),
    "unique": torch.unique,
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long() + 1),
}


def _halved(x):
    while x.sum() > 1:
        x = x / 2
    return x


BACK_AND_FORTH = ([1.0, 0.0, 4.0], [3.0, -2.0, 0.0], [-1.0, -5.0, -0.5])


@pytest.mark.parametrize("what", READS)
def test_what_python_does_with_a_value_is_eagers(what):
    """Each value is seen in recorded calls, in replays, and after another one."""
    function = READS[what]
    graph = Function(function)
    values = [torch.tensor(value) for value in BACK_AND_FORTH]
    for number in (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2, 0, 2, 1, 0):
        got, expected = graph(values[number]), function(values[number])
        assert got.dtype is expected.dtype
        assert torch.equal(got, expected)
    with counters.expect(captures=0, replays=3):  # by now each has a program
        for value in values:
            assert torch.equal(graph(value), function(value))


@pytest.mark.parametrize("what", ["if", "mask", "float"])
def test_a_step_that_branches_on_a_value_trains_as_eager(what):
    """The program that meets another value has written nothing: no state, no generator."""
    (model, optimizer), (twin, other) = made(), made()

    def loss_of(net, x):
        out = net(x)
        if what == "if":
            return out.square().mean() if out.sum() > 0 else out.abs().mean()
        if what == "mask":
            return out[out > 0].square().sum()
        return out.square().mean() * (1 + float(out.detach().sum() > 0))

    def function(x):
        loss = loss_of(model, x)
        loss.backward()
        return loss

    graph = Function(function, optimizer, model=model)
    torch.manual_seed(1)
    expected = []
    for x in data(3) * 5:
        loss = loss_of(twin, x)
        loss.backward()
        other.step()
        other.zero_grad()
        expected.append(loss.detach())
    after = torch.get_rng_state()
    torch.manual_seed(1)
    assert same([graph(x) for x in data(3) * 5], expected)
    assert torch.equal(torch.get_rng_state(), after)
    assert same(snapshot(model, optimizer)[1:], snapshot(twin, other)[1:])


@pytest.mark.parametrize(
    "touch",
    [
        lambda loss: loss.detach().numpy(),
        lambda loss: loss.detach().__array__(),
        lambda loss: torch.utils.dlpack.from_dlpack(loss.detach()),
    ],
    ids=["numpy", "array", "dlpack"],
)
def test_a_value_that_leaves_is_refused_with_the_line(touch):
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
    for number in range(4):
        assert torch.equal(graph(torch.full((2,), float(number))), torch.full((2,), number + 1.0))
