"""The 109 values that OneFlow 0.9 gave first, through `torchgraph.oneflow`."""

import pytest

import torchgraph.oneflow as flow

from .numbers.data import P
from .numbers.first_cases import GRAPHS, OPTIMIZERS, graph_row, rows
from .support import difference, stored

STORED = stored("oneflow-0.9.json")
CLOSE = 2e-6
RAISES = {key for key, value in STORED.items() if isinstance(value, str)}
TOPK = "OP topk"
"""OneFlow 0.9 asks for the dim; here the last one is meant, as in its documents."""


@pytest.fixture(scope="module")
def computed():
    found = rows(flow)
    return found | {
        f"GRAPH {key}": lambda key=key: graph_row(flow, *OPTIMIZERS[key]) for key in GRAPHS
    }


def test_each_is_computed(computed):
    assert set(computed) == set(STORED)
    assert len(STORED) == 109


@pytest.mark.parametrize("key", sorted(set(STORED) - RAISES))
def test_it_is_oneflows(key, computed):
    assert difference(computed[key](), STORED[key]) < CLOSE


@pytest.mark.parametrize("key", sorted(RAISES - {TOPK}))
def test_where_oneflow_raises(key, computed):
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        computed[key]()


def test_where_oneflow_asks_for_the_dim(computed):
    expected = [sorted(row, reverse=True)[:2] for row in P.tolist()]
    assert computed[TOPK]() == expected
