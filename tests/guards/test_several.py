"""Several programs of one signature: why others do not fit is asked only where none fits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.contract.models import Function
from torchgraph import _extension
from torchgraph.guards.guards import Guards
from torchgraph.testing import counters


@pytest.mark.skipif(_extension.guards() is None, reason="without a compiler Python looks")
def test_no_reason_is_looked_for_while_a_program_fits(monkeypatch):
    held = SimpleNamespace(last=False)

    def build(x):
        return x * 3 if held.last else x * 2

    graph = Function(build)
    ways = (False, False, False, True, True, True, False, True, False)
    for held.last in ways:
        graph(torch.ones(1))

    asked = []
    reason = Guards._reason
    monkeypatch.setattr(Guards, "_reason", lambda self: asked.append(self) or reason(self))
    before = counters.replays
    for held.last in ways:
        assert graph(torch.ones(1)).item() == (3 if held.last else 2)
    assert counters.replays > before
    assert not asked
