"""Shape buckets: how many programs they make, and graph.check()."""

import torch
from torch import nn

from tests.buckets.graphs import Padded
from torchgraph.errors import CacheThrashWarning


def test_check_looks_at_the_padded_call():
    graph = Padded(lambda net, x: net(x), nn.Linear(5, 3))
    assert graph.check(torch.randn(3, 5)) is None
    assert graph(torch.randn(5, 5)).shape == (5, 3)


def test_buckets_keep_the_cache_from_thrashing(recwarn):
    graph = Padded(lambda x: x * 2, sizes=[16, 32])
    graph.config.set_cache_size(2)
    for rows in range(1, 33):
        graph(torch.ones(rows))
    assert not [one for one in recwarn if one.category is CacheThrashWarning]
    assert graph.report().programs.captures == 2
