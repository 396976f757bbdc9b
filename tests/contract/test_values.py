"""Python that asks for the values of tensors, and what else a static program cannot hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, adam, singles
from tests.cases.table import Table
from tests.contract.models import Net
from torchgraph.errors import CaptureError, DataDependent

case = Table(fallback="eager")


def halved(x):
    while x.sum() > 1:
        x = x / 2
    return x


READS: dict[str, Callable[[torch.Tensor], Any]] = {
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
    "while": halved,
    "unique": torch.unique,
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long() + 1),
    "print": lambda x: (repr(x), x + 1)[1],
}
BACK_AND_FORTH = ([1.0, 0.0, 4.0], [3.0, -2.0, 0.0], [-1.0, -5.0, -0.5])


def reads(read: Callable[[torch.Tensor], Any]) -> Play:
    """Each value is seen in recorded calls, in replays, and after another one."""
    values = [torch.tensor(value) for value in BACK_AND_FORTH]
    order = (0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2, 0, 2, 1, 0, 0, 1, 2)
    return Play(read, calls=[(values[number],) for number in order])


case.rows(
    {name: lambda read=read: reads(read) for name, read in READS.items()}, forms="graph", least=10
)


def branches(loss_of: Callable[[torch.Tensor], torch.Tensor]) -> Play:
    """The program that meets another value has written nothing: no state, no generator."""
    model = Net()
    optimizer = adam(model)

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        return loss

    return Play(step, [model, optimizer], calls=singles(3) * 5)


TRAINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "trained_by_a_branch": lambda o: o.square().mean() if o.sum() > 0 else o.abs().mean(),
    "trained_by_a_mask": lambda o: o[o > 0].square().sum(),
    "trained_by_a_number": lambda o: o.square().mean() * (1 + float(o.detach().sum() > 0)),
}
case.rows({name: lambda loss=loss: branches(loss) for name, loss in TRAINED.items()}, forms="graph")


def leaves(touch: Callable[[torch.Tensor], Any]) -> Play:
    """A value leaves torch in the middle of a step."""

    def loss_of(out):
        loss = out.square().mean()
        touch(loss.detach())
        return loss

    return branches(loss_of)


case.rows(
    {
        "numpy": lambda: leaves(lambda loss: loss.numpy()),
        "array": lambda: leaves(lambda loss: loss.__array__()),
        "dlpack": lambda: leaves(lambda loss: torch.utils.dlpack.from_dlpack(loss)),
    },
    forms="graph",
    refused=DataDependent,
    says=r"test_values\.py:\d+",
)


@case(forms="graph", served=7, says=None)
def torch_cond():
    def step(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    return Play(step, calls=[(torch.ones(3) * n,) for n in range(1, 10)])


@case(forms="graph", refused=CaptureError, says=r"(?s)sparse.*# here.*Fix")
def a_sparse_gradient():
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(index):
        optimizer.zero_grad()
        loss = model(index).sum()
        loss.backward()  # here
        optimizer.step()
        return loss

    return Play(step, [lambda: model.weight.detach()], calls=[(torch.tensor([1, 2]),)] * 3)


@pytest.mark.parametrize("case", case)
def test_values(case):
    case.check()
