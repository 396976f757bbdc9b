"""What moves by itself: iterators, counters, clocks, random numbers of Python."""

from __future__ import annotations

import collections
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.cases.plays import Play, singles
from tests.cases.table import Table
from torchgraph.errors import NoProgram, RandomStateTouched

case = Table("step graph", says=None)


# --- what moves by itself -------------------------------------------------------------------------


@case
def an_iterator_of_batches():
    batches = iter([torch.full((4,), float(n)) for n in range(20)])
    return Play(lambda x: x * next(batches), calls=singles())


@case
def a_cycle():
    numbers = itertools.cycle([1.0, 2.0])
    return Play(lambda x: x * next(numbers), calls=singles())


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
        before=dict.fromkeys(range(1, 20), count),
        calls=singles(18),
    )


@case
def a_counter_that_decides_seldom():
    held = SimpleNamespace(number=0)

    def step(x):
        held.number += 1
        return x * 2 if held.number % 5 == 0 else x + 1

    return Play(step, [held], calls=singles(16))


@case
def a_flag_that_the_step_clears():
    held = SimpleNamespace(first=True)

    def step(x):
        if held.first:
            held.first = False
            return x * 2
        return x + 1

    return Play(step, [held], {6: lambda: setattr(held, "first", True)}, singles(12))


case.rows(
    {
        "pythons_random": lambda: Play(lambda x: x * random.random(), calls=singles()),
        "numpys_random": lambda: Play(lambda x: x * float(np.random.rand()), calls=singles()),
    },
    refused=RandomStateTouched,
)


@case
def a_mixup_drawn_by_numpy():
    numbers = np.random.default_rng(0)

    def step(x, y):
        share = numbers.beta(0.5, 0.5)
        order = torch.from_numpy(numbers.permutation(len(x)))
        return share * x + (1 - share) * x[order]

    return Play(step)


# --- lengths and queues -----------------------------------------------------------------------


@case(forms="step")
def long_enough():
    log = []

    def step(x):
        log.append(x.sum())
        return x * 2 if len(log) > 6 else x + 1

    return Play(step, [log], calls=singles(12))


@case
def a_queue_of_numbers():
    queue = [1.0] * 5 + [float(n) for n in range(20)]
    return Play(lambda x: x * queue.pop(0), calls=singles())


@case(refused=NoProgram, forms="step")
def a_queue_of_tensors():
    queue = collections.deque([torch.full((4,), float(n)) for n in range(40)])
    return Play(lambda x: x * queue.popleft(), calls=singles())


@case
def a_pointer_of_python_into_a_ring():
    ring, held = torch.zeros(3, 4), SimpleNamespace(number=0)

    def step(x):
        ring[held.number] = x[0]
        held.number = (held.number + 1) % 3
        return ring.sum()

    return Play(step, [ring, held], calls=singles(12))


@case
def a_pointer_of_torch_into_a_ring():
    ring, number = torch.zeros(3, 4), torch.zeros((), dtype=torch.long)

    def step(x):
        ring[number] = x[0]
        number.add_(1).remainder_(3)
        return ring.sum()

    return Play(step, [ring, number], calls=singles(12))


@case
def a_counter_in_a_buffer():
    model = torch.nn.Module()
    model.register_buffer("number", torch.zeros((), dtype=torch.long))

    def step(x):
        model.number += 1
        return x * 2 if model.number > 6 else x + 1

    return Play(step, [model], calls=singles(12))


@case
def writes_counted_by_torch():
    held = torch.zeros(4)

    def step(x):
        held.add_(1)
        return x * 2 if held._version > 6 else x + 1

    return Play(step, [held], calls=singles(12))


@pytest.mark.parametrize("case", case)
def test_moving(case):
    case.check()
