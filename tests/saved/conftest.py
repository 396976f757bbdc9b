"""A Graph that was saved, once for the tests that damage it or load it elsewhere."""

from __future__ import annotations

import pytest

import torchgraph as tg
from tests.saved.cases import CASES, ran


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A training Graph, its directory, and the calls that follow."""
    path = tmp_path_factory.mktemp("saved") / "graph"
    tg.save(ran(*CASES["schedule_sequential"]()), path)
    return path
