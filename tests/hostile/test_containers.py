"""Containers, arrays, iterators, counters, clocks: what Python reads and no name may reach."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from tests.cases.plays import Play, net, reads, singles, trains
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- contents -------------------------------------------------------------------------------------


@case
def a_dict_reordered():
    weights = {"a": 1.0, "b": 2.0}

    def reorder():
        weights["a"] = weights.pop("a")

    def step(x):
        for weight in weights.values():
            x = (x + 1) * weight
        return x

    return Play(step, before={5: reorder}, calls=singles())


@case
def a_key_that_is_asked_for():
    weights = {"a": 1.0}
    return reads(lambda: 2.0 if "b" in weights else 1.0, lambda: weights.update(b=5.0))


@case(slow=True)
def a_frozen_set_of_names():
    model, frozen = net(), {"now": frozenset({"0.weight"})}

    def loss(x, y):
        weights = {n: p.detach() if n in frozen["now"] else p for n, p in model.named_parameters()}
        return (torch.func.functional_call(model, weights, x) - y).square().mean()

    return trains(model, loss, before={5: lambda: frozen.update(now=frozenset({"2.bias"}))})


@case
def a_deque_of_numbers():
    items = collections.deque([1.0, 2.0], maxlen=2)
    return reads(lambda: items[0], lambda: items.append(5.0))


@case
def a_counter():
    items = collections.Counter(a=1)
    return reads(lambda: float(items["a"] + items["b"]), lambda: items.update("ab"))


@case
def a_default_dict():
    items = collections.defaultdict(lambda: 1.0)
    return reads(lambda: items["a"], lambda: items.update(a=5.0))


@case
def an_array_copied_into_torch():
    scale = np.ones(4, dtype=np.float32)
    return Play(
        lambda x: x * torch.tensor(scale), before={5: lambda: scale.fill(5)}, calls=singles()
    )


@case
def a_tensor_that_becomes_a_number():
    weights = {"w": torch.ones(4)}
    changes = {5: lambda: weights.update(w=2.0), 7: lambda: weights.update(w=torch.zeros(4))}
    return Play(lambda x: x * weights["w"], before=changes, calls=singles(12))


@case
def tensors_swapped_in_a_dict():
    weights = {"a": torch.ones(4), "b": torch.zeros(4)}

    def swap():
        weights["a"], weights["b"] = weights["b"], weights["a"]

    return Play(lambda x: x * weights["a"] + weights["b"], before={5: swap}, calls=singles())


@case
def a_tensor_in_two_places_parted():
    weights = {"a": torch.ones(4)}
    weights["b"] = weights["a"]

    def step(x):
        weights["a"].add_(x.mean(0))
        return x * weights["b"]

    def part():
        weights["b"] = weights["b"].clone()

    return Play(step, [weights], {5: part}, singles())


@case
def a_cache_by_shape():
    cache = {}

    def step(x):
        if x.shape not in cache:
            cache[x.shape] = torch.arange(float(x.shape[1]))
        return x * cache[x.shape]

    def clear():
        cache.clear()
        cache[torch.Size((5, 4))] = torch.zeros(4)

    return Play(step, before={5: clear}, calls=singles())


@case
def a_cache_by_the_identity_of_a_tensor():
    cache, weight = {}, torch.ones(4)

    def step(x):
        if id(weight) not in cache:
            cache[id(weight)] = weight * 2
        return x * cache[id(weight)]

    return Play(step, before={5: lambda: (weight.add_(1), cache.clear())}, calls=singles())


@pytest.mark.parametrize("case", case)
def test_containers(case):
    case.check()
