"""Where Inductor was chosen, it compiles beside the call that confirms the program."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.lower.conftest import Interpretation
from tests.parity.models import Mlp, batches
from torchgraph.errors import BackendWarning
from torchgraph.lower import CompilationFailed
from torchgraph.replay.switch import Switch


def graph_of(backend: str) -> Any:
    torch.manual_seed(0)
    model = Mlp()
    graph = tg.train_step(
        model, nn.functional.cross_entropy, optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    graph.config.set_backend(backend)
    return graph


def test_it_begins_with_the_first_program(interpreted: list[Interpretation]) -> None:
    """One of another shape only once it is confirmed: there may be many."""
    graph, ((x, y),), begun = graph_of("inductor"), batches(Mlp, 1), []
    for given in (*[(x, y)] * 4, *[(x[:2], y[:2])] * 3):
        graph(*given)
        begun.append(len(interpreted))
    # The first call makes the momentum: a program that makes none follows from the second.
    assert begun == [0, 1, 1, 1, 1, 1, 2]
    assert [one.inductor_since for one in graph.report().programs.held] == [0, 0]


@pytest.mark.parametrize("backend", ["aten", "auto"])
def test_nothing_begins_where_no_call_waits(
    interpreted: list[Interpretation], backend: str
) -> None:
    graph, ((x, y),) = graph_of(backend), batches(Mlp, 1)
    for _ in range(3):
        graph(x, y)
    assert interpreted == []


def test_a_program_that_the_next_call_does_not_confirm(
    interpreted: list[Interpretation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compiler ends then: another call would wait for it."""
    ended = []
    monkeypatch.setattr(
        Switch, "end_ahead", lambda self, end=Switch.end_ahead: ended.append(end(self))
    )
    model = nn.Linear(4, 4)
    model.scale = 1.0

    @tg.step
    def step(x: torch.Tensor) -> torch.Tensor:
        return (model(x) * model.scale).sum()

    step.config.set_backend("inductor")
    found = [step(torch.ones(2, 4)).item()]
    model.scale = 2.0
    found.append(step(torch.ones(2, 4)).item())
    assert len(ended) == 1
    found += [step(torch.ones(2, 4)).item() for _ in range(2)]
    assert found[1:] == pytest.approx([2 * found[0]] * 3)
    assert len(interpreted) == 2
    assert len(ended) == 1


@pytest.fixture
def without_compiler(interpreted: list[Interpretation], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compilation fails when it starts."""

    def start(self: Any, **options: bool) -> None:
        raise CompilationFailed("no compiler here")

    monkeypatch.setattr(Interpretation, "start", start)


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_is_said_once() -> None:
    graph, ((x, y),) = graph_of("inductor"), batches(Mlp, 1)
    for _ in range(3):
        graph(x, y)
    with pytest.warns(BackendWarning, match="stays on the aten backend. no compiler here"):
        graph(x, y)
    for _ in range(2):
        graph(x, y)
    assert graph.report().programs.held[0].runs > 0


@pytest.mark.usefixtures("without_compiler")
def test_a_warning_that_is_an_error_stops_one_call() -> None:
    """Before the call has done anything: whoever tries again trains once."""
    graph, ((x, y),), stopped = graph_of("inductor"), batches(Mlp, 1), []
    weight = next(iter(graph.model.parameters()))
    for call in range(6):
        before = weight.detach().clone()
        with warnings.catch_warnings():
            warnings.simplefilter("error", BackendWarning)
            try:
                graph(x, y)
            except BackendWarning:
                stopped.append(call)
                assert torch.equal(weight, before)
            else:
                assert not torch.equal(weight, before)
    assert stopped == [3]


def test_what_was_begun_for_other_threads_is_begun_anew(
    interpreted: list[Interpretation], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, ((x, y),) = graph_of("inductor"), batches(Mlp, 1)
    for _ in range(3):
        graph(x, y)
    monkeypatch.setattr(Interpretation, "is_stale", True)
    graph(x, y)
    assert len(interpreted) == 2
    assert graph.report().programs.held[0].inductor_since == 0
