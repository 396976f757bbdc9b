"""A thousand more steps hold no more memory.

Python's memory is what tracemalloc traces, torch's the storages of all tensors that gc knows.
"""

import collections
import gc
import sys
import tracemalloc
from contextlib import suppress

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.parity.models import Mlp, batches
from tests.support import confirm, thinned
from torchgraph.testing import counters

pytestmark = pytest.mark.usefixtures("without_looks", "small_heap")

FIRST, STEPS = 300, 1000
ALLOWED = 24 * STEPS
"""Bytes: a float for each step. What torch keeps for reuse fills up in some hundred steps."""


def held():
    """(bytes of Python, bytes of torch, number of storages)."""
    gc.collect()
    sys._clear_type_cache()  # torch asks a list for __dlpack__; CPython keeps 4,096 such names
    storages = {}
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, nn.Parameter) and found.layout is torch.strided:
            with suppress(NotImplementedError):  # what torch.func wraps has no storage
                storage = found.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return tracemalloc.get_traced_memory()[0], sum(storages.values()), len(storages)


def grown(graph):
    """What a thousand steps add, after some first ones."""
    data = batches(Mlp, 4)
    tracemalloc.start()
    try:
        for number in range(FIRST):
            graph(*data[number % 4])
        before = held()
        for number in range(STEPS):
            graph(*data[number % 4])
        after = held()
    finally:
        tracemalloc.stop()
    return [new - old for old, new in zip(before, after, strict=True)]


def trained():
    model = Mlp()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    return tg.train_step(model, nn.functional.cross_entropy, optimizer, scheduler)


def check(graph):
    python, memory, storages = grown(graph)
    assert python < ALLOWED
    assert memory <= 0  # less, where something of another test is gone
    assert storages <= 0


def test_on_aten():
    check(trained())


@pytest.mark.parametrize("ring", thinned([None, 2], keep=[2]))
def test_replayed(recording, ring):
    graph = trained()
    graph.config.set_outputs_buffer_size(ring)
    confirm(graph, *batches(Mlp, 1)[0])
    recording[0].events = collections.deque(maxlen=2)  # else they are what grows
    with counters.expect(graph_replays=STEPS + FIRST - 1):  # the first run warms up
        check(graph)


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_shapes_that_come_and_go(recording, mode):
    graph = trained()
    graph.config.set_cuda_graph(mode)
    graph.config.set_cache_size(2)
    x, y = batches(Mlp, 1)[0]
    sizes = []
    for _ in range(3):
        for rows in (5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3):
            graph(x[:rows], y[:rows])
        sizes.append(held()[1:])
    assert sizes[1] == sizes[2]


def test_the_check_sees_what_a_step_leaves():
    graph = trained()
    kept = []
    python, memory, storages = grown(lambda *batch: kept.append(graph(*batch)))
    assert python > ALLOWED
    assert memory > 0
    assert storages >= STEPS - 1
