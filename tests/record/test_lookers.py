"""Who looks at a value where no line of the user's does, and how to have it not do so."""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

import torchgraph as tg
from torchgraph.errors import EagerWarning, NotExportable


class Train(tg.Graph):
    """A loss of the user's."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.loss = nn.Linear(4, 3), loss
        self.add_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))

    def build(self, *args: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.model, *args)
        loss.backward()
        return loss


def _product(model, x):
    return model(x).prod(1).mean()


def _product_by_parts(model, x):
    return functools.reduce(operator.mul, model(x).unbind(1)).mean()


def _normal(validate, model, x):
    return -Normal(model(x), 1.0, validate_args=validate).log_prob(x[:, :3]).mean()


def _categorical(validate, model, x):
    found = Categorical(logits=model(x), validate_args=validate)
    return -found.log_prob(torch.zeros(3, dtype=torch.long)).mean()


def _branch(model, x):
    out = model(x)
    return (out * 2 if out.isfinite().all() else out).mean()


def _exported(loss, tmp_path):
    graph = Train(loss)
    for _ in range(4):
        graph(torch.randn(3, 4))
    tg.export(graph, tmp_path / "step.pt2")


LOOKS = {
    "backward": (_product, "torch's backward of this line looks", r"x\.unbind\(dim\)"),
    "normal": (functools.partial(_normal, None), "torch.distributions, as", "validate_args=False"),
    "categorical": (functools.partial(_categorical, None), "torch.distr", "validate_args=False"),
    "branch": (
        _branch,
        "Python, or a function that this line calls, looks at a value",
        r"torch\.where",
    ),
}


@pytest.mark.parametrize("name", LOOKS)
def test_who_looks_in_a_step_that_is_exported(name, tmp_path):
    loss, who, fix = LOOKS[name]
    with pytest.raises(NotExportable, match=rf"(?s){who}.*Fix: .*{fix}") as raised:
        _exported(loss, tmp_path)
    assert raised.value.where is not None
    assert raised.value.where.filename == __file__


@pytest.mark.parametrize(
    "loss",
    [_product_by_parts, functools.partial(_normal, False), functools.partial(_categorical, False)],
)
def test_the_way_out_leads_out(loss, tmp_path):
    _exported(loss, tmp_path)


def test_who_looks_in_a_step_that_stays_in_eager():
    """How many factors are zero differs from call to call."""
    graph = Train(lambda model, x: (model(x) * x[:, :3]).prod())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", EagerWarning)
        for number in range(40):
            x = torch.ones(8, 4)
            x.view(-1)[: number % 32] = 0
            graph(x)
    texts = [str(one.message) for one in told if issubclass(one.category, EagerWarning)]
    assert any("torch's backward of this line looks at it: compute it by" in text for text in texts)
