"""Every test of the guards runs in both forms."""

from __future__ import annotations

import pytest

from tests.guards.models import Bound
from torchgraph import _extension


@pytest.fixture(params=["compiled", "python"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What checks the guards in this test."""
    if request.param == "python":
        monkeypatch.setattr(_extension, "guards", lambda: None)
    elif _extension.guards() is None:
        pytest.skip("the guards are not compiled here")
    return str(request.param)


@pytest.fixture
def bound(form: str) -> Bound:
    """What there is to guard, with guards of that form."""
    made = Bound()
    assert made.guards.form == form
    return made
