"""`config.set_fallback`: what cannot be a program is an error early, and eager's on request."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.fallback_cases import CASES, Case
from tests.contract.models import Function, same, snapshot
from torchgraph.errors import EagerWarning, NoProgram

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),  # what it says of its own prototypes
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:FutureWarning"),  # torch 2.15
]


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def owners(case: Case) -> list[Any]:
    return [one for one in (case.model, case.optimizer) if one is not None]


def bare(value: Any) -> Any:
    """Results without a history."""
    if isinstance(value, torch.Tensor):
        dense = value.to_dense() if value.is_sparse else value
        dense = list(dense.unbind()) if dense.is_nested else dense
        return bare(dense) if dense is not value else value.detach().clone()
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items()}
    return [bare(item) for item in value] if isinstance(value, (list, tuple)) else value


def eager(name: str) -> list[Any]:
    """What each call returns and leaves."""
    seed()
    case = CASES[name]()
    optimizer, found = case.optimizer, []
    for batch in case.batches():
        if optimizer is None:
            returned = case.build(batch)
        elif case.closure:

            def closure(batch=batch):
                optimizer.zero_grad()
                return case.build(batch)

            returned = optimizer.step(closure)
        else:
            returned = case.build(batch)
            optimizer.step()
            optimizer.zero_grad()
        found.append((bare(returned), bare(batch), snapshot(*owners(case))))
    return found


def graphed(name: str, mode: str) -> tuple[list[Any], NoProgram | None]:
    """The same by a Graph, as far as it goes, and the error that it ends with."""
    seed()
    case = CASES[name]()
    optimizers = [] if case.optimizer is None else [case.optimizer]
    modules = {} if case.model is None else {"model": case.model}
    graph = Function(case.build, *optimizers, **modules)
    graph.config.set_fallback(mode)
    found = []
    for batch in case.batches():
        try:
            returned = graph(batch)
        except NoProgram as error:
            return found, error
        found.append((bare(returned), bare(batch), snapshot(*owners(case))))
    assert "Calls" in str(graph.report())
    return found, None


@pytest.mark.parametrize("name", CASES)
def test_each_is_eagers_or_by_default_an_early_error_that_names_the_way_out(name):
    expected = eager(name)
    found, error = graphed(name, "eager")
    assert error is None
    assert same(found, expected)
    assert len(found) == 6
    found, error = graphed(name, "error")
    if error is None:
        assert len(found) == 6
    else:
        assert len(found) < 2
        assert 'config.set_fallback("eager")' in str(error)
    assert same(found, expected[: len(found)])


def attached(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_()[:2]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("function", "batch"), [(lambda x: x.cos(), attached), (lambda x: x.numpy().sum(), torch.t)]
)
def test_after_the_second_call_of_all_none_is_an_error(function, batch, number):
    graph = Function(lambda x: function(x) if len(x) == 2 else x.sin())
    for call in range(6):
        x = torch.ones(call + 3, 2)  # a signature of its own: no program ever serves
        if call != number:
            graph(x)
        elif call < 2:
            with pytest.raises(NoProgram):
                graph(batch(x))
        else:
            graph(batch(x))


def test_a_scheduler_steps_with_a_build_that_runs_in_eager():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    class Train(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            self.add_optimizer(optimizer, lr_sch=schedule)
            self.config.set_fallback("eager")

        def build(self, x):
            optimizer.zero_grad()
            loss = (torch.eye(2).to_sparse() @ self.model(x)).mean()
            loss.backward()
            optimizer.step()
            return loss

    graph = Train()
    with pytest.warns(EagerWarning, match="layout"):
        graph(torch.randn(2, 3))
    graph(torch.randn(2, 3))
    assert optimizer.param_groups[0]["lr"] == 0.25
