"""A fault of what looks at the user's lines: the step goes on, in eager, and says whose it is."""

import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph.errors import EagerWarning, NoProgram
from torchgraph.reasons import Reason
from torchgraph.record.reads.names import unread
from torchgraph.record.reads.traversal import Traversal


@pytest.fixture(autouse=True)
def _failing(monkeypatch):
    unread()  # once a process: by what does not fail

    def fails(*_: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(Traversal, "follow", fails)


def test_a_line_that_cannot_be_looked_at_keeps_the_step_in_eager(monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "fast")
    model = nn.Linear(3, 1)

    @tg.step
    def step(x):
        return model(x).sum()

    x = torch.randn(2, 3)
    with pytest.warns(EagerWarning, match="AttributeError: no such thing.*please report it"):
        found = [step(x) for _ in range(4)]
    assert all(torch.equal(one, model(x).sum()) for one in found)
    calls = step.report().calls
    assert calls.programs == 0
    assert [one.reason for one in calls.eager] == [Reason.FAULT]


def test_a_refusal_is_no_fault(monkeypatch):
    monkeypatch.setenv("TORCHGRAPH_VERIFY", "fast")

    def refuses(*_: object) -> None:
        raise NoProgram("no such place.")

    monkeypatch.setattr(Traversal, "follow", refuses)
    model = nn.Linear(3, 1)
    with pytest.raises(NoProgram, match="no such place"):
        tg.step(lambda x: model(x).sum())(torch.randn(2, 3))


def test_where_faults_are_looked_for_it_is_raised():
    model = nn.Linear(3, 1)
    with pytest.raises(AttributeError, match="no such thing"):
        tg.step(lambda x: model(x).sum())(torch.randn(2, 3))
