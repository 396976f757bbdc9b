"""Containers, arrays, iterators, counters, clocks: what Python reads and no name may reach."""

from __future__ import annotations

import collections
import itertools
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.hostile.kit import Cases, Play, net, pairs, singles, trains
from torchgraph.errors import RandomStateTouched

case = Cases()


def reads(read, change, **more):
    """``x * read()``, and before call 5 the change."""
    return Play(lambda x: x * read(), before={5: change}, calls=singles(10), **more)


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


@case(fault="what a defaultdict holds is not looked at")
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

    return Play(step, before={n: lambda: scale.append(2.0) for n in range(4, 7)}, calls=singles(12))  # noqa: C420


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


# --- what moves by itself -------------------------------------------------------------------------


@case
def an_iterator():
    numbers = itertools.count(1)
    return Play(lambda x: x * next(numbers), calls=singles())


@case(fault="documented: an iterator is not looked at")
def an_iterator_that_stands_at_first():
    numbers = iter([1.0] * 5 + [2.0] * 9)
    return Play(lambda x: x * next(numbers), calls=singles(), watched=[lambda: 0])


@case
def an_iterator_of_batches():
    batches = iter([torch.full((4,), float(n)) for n in range(20)])
    return Play(lambda x: x * next(batches), calls=singles())


@case(fault="the third call's program serves all others")
def a_cycle():
    numbers = itertools.cycle([1.0, 2.0])
    return Play(lambda x: x * next(numbers), calls=singles())


@case
def a_generator_function():
    def schedule():
        value = 1.0
        while True:
            yield value
            value *= 0.5

    numbers = schedule()
    return Play(lambda x: x * next(numbers), calls=singles())


@case
def a_counter_that_counts():
    held = SimpleNamespace(number=0)

    def step(x):
        held.number += 1
        return x * held.number

    return Play(step, [held], calls=singles())


@case
def a_counter_that_warms_up():
    held = SimpleNamespace(number=0)

    def step(x):
        held.number += 1
        return x * min(1.0, held.number / 6)

    return Play(step, [held], calls=singles(14))


@case
def a_counter_of_the_loop():
    held = SimpleNamespace(number=0)

    def count():
        held.number += 1

    return Play(
        lambda x: x * min(3, held.number),
        before={n: count for n in range(1, 20)},
        calls=singles(18),
    )  # noqa: C420


@case
def a_counter_that_decides_seldom():
    held = SimpleNamespace(number=0)

    def step(x):
        held.number += 1
        return x * 2 if held.number % 5 == 0 else x + 1

    return Play(step, [held], calls=singles(16))


@case(fault="the branch of the first call serves all others")
def a_flag_that_the_step_clears():
    held = SimpleNamespace(first=True)

    def step(x):
        if held.first:
            held.first = False
            return x * 2
        return x + 1

    return Play(step, [held], {6: lambda: setattr(held, "first", True)}, singles(12))


@case(fault="the third call's program serves all others")
def a_sign_that_flips():
    held = SimpleNamespace(sign=1.0)

    def step(x):
        held.sign = -held.sign
        return x * held.sign

    return Play(step, [held], calls=singles())


@case(fault="the third call's program serves all others")
def every_second_step():
    held = SimpleNamespace(number=0)

    def step(x):
        held.number = (held.number + 1) % 2
        return x * 2 if held.number else x + 1

    return Play(step, [held], calls=singles())


@case(fault="the fourth call's program serves all others")
def a_list_that_rotates():
    order = [0, 1, 2]

    def step(x):
        order.append(order.pop(0))
        return x * (order[0] + 1)

    return Play(step, [order], calls=singles())


@case(fault="the third call's program serves all others")
def a_deque_that_rotates():
    turns = collections.deque([1.0, 2.0])

    def step(x):
        turns.rotate()
        return x * turns[0]

    return Play(step, [turns], calls=singles())


@case
def annealing_by_the_number_of_a_call():
    model, held = net(), SimpleNamespace(number=0)

    def loss(x, y):
        return functional.mse_loss(model(x), y) * (0.9**held.number)

    def count():
        held.number += 1

    return trains(model, loss, before={n: count for n in range(12)}, calls=pairs(12))  # noqa: C420


@case
def the_time():
    start = time.perf_counter()
    return Play(lambda x: x * (1.0 if time.perf_counter() - start < 1e6 else 2.0), calls=singles())


@case(refused=RandomStateTouched)
def pythons_random():
    return Play(lambda x: x * random.random(), calls=singles())


@case(refused=RandomStateTouched)
def numpys_random():
    return Play(lambda x: x * float(np.random.rand()), calls=singles())


@case(refused=RandomStateTouched)
def a_choice_of_a_branch():
    return Play(lambda x: x * 2 if random.random() < 0.5 else x + 1, calls=singles())


@case
def a_random_of_ones_own():
    numbers = random.Random(0)
    return Play(lambda x: x * numbers.random(), calls=singles())


@case
def a_numpy_generator_of_ones_own():
    numbers = np.random.default_rng(0)
    return Play(lambda x: x * float(numbers.random()), calls=singles())


@case(fault="a generator of one's own is not looked at")
def a_branch_by_a_random_of_ones_own():
    numbers = random.Random(5)
    return Play(lambda x: x * 2 if numbers.random() < 0.3 else x + 1, calls=singles(16))


@case
def a_mixup_drawn_by_numpy():
    numbers = np.random.default_rng(0)

    def step(x, y):
        share = numbers.beta(0.5, 0.5)
        order = torch.from_numpy(numbers.permutation(len(x)))
        return share * x + (1 - share) * x[order]

    return Play(step)


@pytest.mark.parametrize("case", case)
def test_containers(case):
    case.check()
