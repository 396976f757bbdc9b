"""Ops of torch's that read values only to check them: other values that pass are no other step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import one_hot

import torchgraph as tg
from tests.cases.plays import Play, sgd
from tests.cases.table import Table

table = Table()


def _not_trained(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found = F.one_hot(x, 9)
    return found.clone()


FORMS = {
    "functional": lambda x: F.one_hot(x, 9),
    "by name": lambda x: one_hot(x, num_classes=9),
    "op": lambda x: torch.ops.aten.one_hot(x, 9),
    "inference": _not_trained,
}


def trained(form: Any, at: int = 0, wrong: int | None = None) -> Play:
    """Classes are inputs; those of call ``at`` hold one that may be wrong."""
    net = nn.Linear(9, 3)
    optimizer = sgd(net)
    targets = torch.arange(4) % 3
    calls = [(torch.randint(0, 9, (4,)),) for _ in range(8)]
    if wrong is not None:
        calls[at][0][2] = wrong

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        classes = form(x)
        loss = F.cross_entropy(net(classes.float()), targets)
        loss.backward()
        optimizer.step()
        return loss.detach(), classes

    return Play(step, [net, optimizer], calls=calls)


table.rows(
    {name: lambda form=form: trained(form) for name, form in FORMS.items()}, served=5, recorded=1
)
table.rows(
    {
        f"{wrong} at {at}": lambda at=at, wrong=wrong: trained(FORMS["by name"], at, wrong)
        for at, wrong in [(0, -1), (1, 9), (5, -1), (5, 9)]
    }
)
table.rows(
    {
        "no classes": lambda: Play(lambda x: one_hot(x, 3), calls=[(EMPTY.long(),)]),
        "no integers": lambda: Play(lambda x: one_hot(x, 3), calls=[(torch.zeros(3),)]),
    },
    served=0,
)
EMPTY = torch.zeros(0)
table.rows(
    {
        "a number of classes that moves": lambda: Play(
            lambda x: one_hot(x), calls=[(torch.tensor([0, number]),) for number in range(1, 40)]
        )
    },
    says="give one_hot its num_classes",
)


@pytest.mark.parametrize("case", table)
def test_other_classes_are_the_same_step_or_end_in_eagers_error(case):
    case.check()


def test_where_nobody_listens_it_is_torchs():
    tg.step(lambda x: one_hot(x, 3))(torch.tensor([0, 1]))
    assert torch.equal(one_hot(torch.tensor([2, 0])), torch.tensor([[0, 0, 1], [1, 0, 0]]))
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        one_hot(torch.tensor([2, 0]), 2)
    compiled = torch.compile(lambda x: one_hot(x, 3) * 2, backend="aot_eager")
    assert torch.equal(compiled(torch.tensor([1])), torch.tensor([[0, 2, 0]]))
