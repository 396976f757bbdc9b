"""A Graph that was saved, once for the tests that damage it or load it elsewhere."""

from __future__ import annotations

import itertools

import pytest

import torchgraph as tg
from tests.saved.cases import CASES


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A training Graph, its directory, and the calls that follow."""
    path = tmp_path_factory.mktemp("saved") / "graph"
    graph, calls = CASES["schedule_sequential"]()
    for args, kwargs in itertools.islice(calls, 6):
        graph(*args, **kwargs)
    tg.save(graph, path)
    return path
