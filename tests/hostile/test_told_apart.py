"""Steps that go by which tensor a name leads to, or by how often it was written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.weak import WeakIdKeyDictionary

import torchgraph as tg
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters

KEYED: dict[str, Callable[[list[Any]], Callable[[Any], float]]] = {
    "a key": lambda both: {both[0]: 2.0, both[1]: 3.0}.__getitem__,
    "get": lambda both: lambda one: {both[1]: 3.0}.get(one, 2.0),
    "a part of a key": lambda both: lambda one: {(both[0], 1): 2.0, (both[1], 1): 3.0}[one, 1],
    "in a set": lambda both: lambda one: 3.0 if one in {both[1]} else 2.0,
    "hash": lambda both: lambda one: 3.0 if hash(one) == hash(both[1]) else 2.0,
    "id": lambda both: lambda one: {id(both[0]): 2.0, id(both[1]): 3.0}[id(one)],
    "weak keys": lambda both: WeakIdKeyDictionary({both[0]: 2.0, both[1]: 3.0}).__getitem__,
    "a cache": lambda both: functools.lru_cache(lambda one: 3.0 if one is both[1] else 2.0),
    "its address": lambda both: (
        lambda one: {both[0].data_ptr(): 2.0, both[1].data_ptr(): 3.0}[one.data_ptr()]
    ),
    "its storage": lambda both: lambda one: 3.0 if one.untyped_storage().nbytes() > 12 else 2.0,
    "a view": lambda both: lambda one: 3.0 if one._is_view() else 2.0,
    "its base": lambda both: lambda one: 3.0 if one._base is not None else 2.0,
}


@pytest.mark.parametrize("name", KEYED)
def test_which_of_two_tensors_it_is(name):
    both = [torch.ones(3), torch.ones(5)[:3]]
    held = SimpleNamespace(one=both[0], weight=KEYED[name](both))

    @tg.step
    def step(x):
        weight = held.weight(held.one)
        return (held.one * x * weight).sum()

    step.config.set_look_again("off")
    found, before = [], counters.replays
    for call in range(16):
        held.one = both[call // 4 % 2]
        found.append(step(torch.ones(3)).item())
    assert found == ([6.0] * 4 + [9.0] * 4) * 2
    assert counters.replays - before >= 8


def test_how_often_a_tensor_was_written():
    held = SimpleNamespace(one=torch.ones(3), seen=-1, twice=torch.zeros(3))

    @tg.step
    def step(x):
        if held.seen != held.one._version:
            held.seen, held.twice = held.one._version, held.one * 2
        return (held.twice * x).sum()

    with pytest.warns(EagerWarning, match="how often a tensor was written"):
        step(torch.ones(3))
    found = []
    for call in range(8):
        if call in (4, 6):
            held.one.add_(1)
        found.append(step(torch.ones(3)).item())
    assert found == [6.0] * 4 + [12.0] * 2 + [18.0] * 2
