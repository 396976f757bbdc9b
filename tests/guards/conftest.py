"""Every test of the guards runs in both forms; `make test-all` also without reading memory."""

from __future__ import annotations

import pytest

from tests.guards.models import Bound
from torchgraph import _extension
from torchgraph.guards import tensors

ASKING = "compiled, asking torch"


@pytest.fixture(params=["compiled", pytest.param(ASKING, marks=pytest.mark.slow), "python"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What checks the guards in this test."""
    if request.param == "python":
        monkeypatch.setattr(_extension, "guards", lambda: None)
    elif _extension.guards() is None:
        pytest.skip("the guards are not compiled here")
    elif request.param != "compiled":
        monkeypatch.setattr(tensors, "layout", lambda: None)
    return str(request.param).partition(",")[0]


@pytest.fixture
def bound(form: str) -> Bound:
    """What there is to guard, with guards of that form."""
    made = Bound()
    assert made.guards.form == form
    return made
