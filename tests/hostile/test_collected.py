"""What a step collects: tensors in lists, dicts and deques, by itself or by hooks."""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, adam, by_hand, moves, net, setting, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


@case(forms="step", serves=True)
def the_last_three_in_a_deque():
    held = deque(maxlen=3)

    def step(x):
        held.append(x * 2)
        return torch.stack(list(held)).sum()

    return moves(step, held, number=18)


@case(forms="step", serves=True)
def a_list_in_a_default_dict_that_a_loop_appends_to():
    held = defaultdict(list)

    def step(x):
        for factor in range(3):
            held["k"].append(x * factor)
        return x + 1

    return moves(step, held, before6=held.clear)


@case(forms="step")
def lists_in_a_dict_that_are_made_when_missing():
    held = SimpleNamespace(k={})

    def step(x):
        held.k.setdefault("a", []).append(x.mean())
        if "b" not in held.k:
            held.k["b"] = []
        held.k["b"].append(x.sum())
        return x * 2

    return moves(step, held, number=18)


@case(forms="step", serves=True)
def what_a_tensor_hook_appends():
    weight, kept = nn.Parameter(torch.ones(4)), []
    weight.register_hook(lambda gradient: kept.append(gradient.detach()))

    def step(x):
        weight.grad = None
        (x * weight).sum().backward()
        return weight.grad * 1

    return moves(step, kept, weight, before6=kept.clear)


@case(forms="step")
def a_ring_of_tensors_in_a_list():
    held = SimpleNamespace(b=[torch.zeros(5, 4), torch.zeros(5, 4)], i=0)

    def step(x):
        held.b[held.i] = x * 2
        held.i = (held.i + 1) % 2
        return held.b[held.i] + x

    return moves(step, held, number=18, before8=setting(held, "i", 0))


def losses_that(total: Any) -> Play:
    """A dict of losses that the step fills, and then ``total(losses)``."""
    model, losses = net(), {}
    optimizer = adam(model)

    def step(x):
        losses["mean"] = model(x).square().mean()
        losses["norm"] = model(x).norm() * 0.1
        loss = total(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {name: one.detach() for name, one in losses.items()}

    return by_hand(step, model, optimizer, calls=singles(14))


@case(forms="step", serves=True)
def a_dict_of_losses_that_is_filled_and_walked():
    def total(losses):
        found = 0.0
        for _, loss in losses.items():
            found = found + loss
        return found

    return losses_that(total)


@pytest.mark.parametrize("case", case)
def test_collected(case):
    case.check()
