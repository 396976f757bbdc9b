"""Containers, arrays, iterators, counters, clocks: what Python reads and no name may reach."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from tests.hostile.kit import Cases
from tests.hostile.plays import (
    Play,
    net,
    reads,
    singles,
    trains,
)

case = Cases()


# --- contents -------------------------------------------------------------------------------------


@case
def a_list_of_weights():
    weights = [1.0, 2.0, 3.0]
    changes = {4: weights.sort, 5: weights.reverse, 7: weights.pop}
    return Play(lambda x: sum(w * x for w in weights), before=changes, calls=singles(12))


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
def a_key_added_to_a_dict():
    weights = {"a": 1.0}
    return reads(lambda: sum(weights.values()), lambda: weights.update(b=5.0))


@case
def a_key_looked_up_with_a_default():
    weights = {"a": 1.0}
    return reads(lambda: weights.get("b", 1.0), lambda: weights.update(b=5.0))


@case
def a_key_that_is_asked_for():
    weights = {"a": 1.0}
    return reads(lambda: 2.0 if "b" in weights else 1.0, lambda: weights.update(b=5.0))


@case
def the_length_of_a_list():
    items = [object()]
    return reads(lambda: float(len(items)), lambda: items.append(object()))


@case
def whether_a_list_is_empty():
    items = []
    return reads(lambda: 2.0 if items else 1.0, lambda: items.append("x"))


@case
def a_set():
    kinds = {"a"}
    return reads(lambda: float(len(kinds)) + ("b" in kinds), lambda: kinds.update("b"))


@case
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
def a_chain_map():
    items = collections.ChainMap({}, {"a": 1.0})
    return reads(lambda: items["a"], lambda: items.update(a=5.0))


@case
def a_user_list():
    items = collections.UserList([1.0])
    return reads(lambda: items[0], lambda: items.insert(0, 5.0))


@case
def an_array():
    scale = np.array([1.0, 2.0])
    return reads(lambda: float(scale[0]), lambda: scale.__setitem__(0, 5.0))


@case
def an_array_in_torch():
    scale = np.ones(4, dtype=np.float32)
    return Play(
        lambda x: x * torch.from_numpy(scale), before={5: lambda: scale.fill(5)}, calls=singles()
    )


@case
def an_array_copied_into_torch():
    scale = np.ones(4, dtype=np.float32)
    return Play(
        lambda x: x * torch.tensor(scale), before={5: lambda: scale.fill(5)}, calls=singles()
    )


@case
def a_list_made_a_tensor():
    scale = [1.0, 2.0, 3.0, 4.0]
    return Play(
        lambda x: x * torch.tensor(scale), before={5: lambda: scale.reverse()}, calls=singles()
    )


@case
def an_array_that_takes_part_in_a_sum():
    class Config:
        scale = np.float64(1.0)

    return reads(lambda: Config.scale, lambda: setattr(Config, "scale", np.float64(2.0)))


@case
def a_tensor_made_of_a_list_that_grows():
    scale = [1.0]

    def step(x):
        return x * torch.tensor(scale).mean()

    return Play(step, before={n: lambda: scale.append(2.0) for n in range(4, 7)}, calls=singles(12))


@case
def a_tensor_in_a_list_replaced():
    weights = [torch.ones(4), torch.ones(4)]
    return Play(
        lambda x: x * weights[0] + weights[1],
        before={5: lambda: weights.__setitem__(1, torch.zeros(4))},
        calls=singles(),
    )


@case
def a_tensor_of_another_shape_in_a_dict():
    weights = {"w": torch.ones(4)}
    return Play(
        lambda x: x * weights["w"],
        before={5: lambda: weights.update(w=torch.full((5, 1), 2.0))},
        calls=singles(),
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
def a_list_of_tensors_that_is_shortened():
    weights = [torch.ones(4), torch.full((4,), 2.0)]
    return Play(lambda x: sum(x * w for w in weights), before={5: weights.pop}, calls=singles())


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
