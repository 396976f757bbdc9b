"""What a step leaves in lists, arrays, gradients and flags: replays leave the like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.contract.loops import falls_back
from torchgraph.testing import counters

pytestmark = pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")


MOVES = """
log.insert(0, 1.0); del log[2:]
log.append(1.0); log[:] = log[-2:]
log[len(log):] = [1.0]; log[:1] = []
log.append([]); log[-1].append(1.0)
log.append({"n": 1}); log[-1]["m"] = 2
log[::2] = [1.0] * len(log[::2])
log.append(1.0); log.pop(0) if len(log) > 3 else None
if log: log[-1] = 2.0
log.sort(key=str); log.append(1.0)
""".strip().split("\n")


@pytest.mark.parametrize("statement", MOVES)
def test_a_list_is_as_after_eager_whatever_the_loop_does_to_it(statement):
    found = []
    for wrap in (lambda step: step, falls_back):
        names: dict[str, Any] = {"log": []}
        code = f"def step(x):\n    {statement}\n    return x * 2\n"
        exec(compile(code, "<step>", "exec"), names)
        step, states = wrap(names["step"]), []
        for number in range(10):
            if number == 5:
                names["log"].clear()
            if number == 8:
                names["log"].append(5)
            try:
                step(torch.ones(2))
            except TypeError:  # eager's, of ``5["m"] = 2``
                states.append("raised")
            states.append(repr(names["log"]))
        found.append(states)
    assert found[0] == found[1]


def test_an_array_that_is_turned_in_place_is_the_one_that_is_there():
    held = SimpleNamespace(rows=np.array([1.0, 2.0]))
    first = held.rows

    def build(x):
        held.rows[:] = held.rows[::-1]
        return x * float(held.rows[0])

    step = falls_back(build)
    for number in range(10):
        if number == 5:
            held.rows = held.rows.copy()
        assert torch.equal(step(torch.ones(2)), torch.ones(2) * (2.0 if number % 2 == 0 else 1.0))
    assert first.tolist() == [2.0, 1.0]


def test_the_gradient_of_a_tensor_from_outside_is_what_the_step_assigns():
    outside = torch.ones(2)

    def build(x):
        outside.grad = x.clone()
        return outside + 1

    step = falls_back(build)
    before = counters.replays
    for number in range(6):
        step(torch.full((2,), float(number)))
        assert outside.grad.tolist() == [number, number]
    assert counters.replays > before


def test_a_gradient_that_the_step_drops_is_gone():
    outside = torch.ones(2)

    def build(x):
        outside.grad = None
        return x + outside

    step = falls_back(build)
    for number in range(8):
        if number > 4:
            outside.grad = torch.ones(2)
        step(torch.ones(2))
        assert outside.grad is None


def test_a_tensor_that_requires_a_gradient_since_is_not_written_in_place():
    outside, held = torch.ones(2), SimpleNamespace(view=None)

    def build(x):
        held.view = outside.detach()
        outside.add_(1)
        return x * 2

    step = falls_back(build)
    for _ in range(5):
        step(torch.ones(2))
    outside.requires_grad_()
    with pytest.raises(RuntimeError, match="requires grad"):
        step(torch.ones(2))
    assert outside.tolist() == [6, 6]


def test_a_place_that_the_loop_empties_is_filled_again():
    cfg, held = SimpleNamespace(it=torch.ones(1)), SimpleNamespace(a=None, b=None)

    def build(x):
        held.a = SimpleNamespace(items=[cfg.it])
        held.b = {"it": cfg.it}
        return x * 2

    step = falls_back(build)
    before = counters.replays
    for number in range(9):
        if number == 5:
            held.a = held.b = None
        step(torch.ones(2))
        assert held.a.items[0] is cfg.it
        assert held.b["it"] is cfg.it
    assert counters.replays > before


def test_each_call_makes_its_own_list_though_it_equals_the_last():
    cfg, held = SimpleNamespace(it=[3.0, 1.0]), SimpleNamespace(a=None)

    def build(x):
        held.a = sorted(cfg.it)
        return x * 2

    step, seen = falls_back(build), []
    before = counters.replays
    for _ in range(7):
        step(torch.ones(2))
        assert all(held.a is not one for one in seen)
        seen.append(held.a)
    assert counters.replays > before


def test_a_module_attribute_follows_an_object_that_comes_back():
    first, second = SimpleNamespace(rate=1), SimpleNamespace(rate=1)
    cfg, module = SimpleNamespace(it=first), nn.Module()

    def build(x):
        module.last = cfg.it
        return x * 2

    step = falls_back(build)
    for number in range(11):
        cfg.it = second if 5 <= number < 8 else first
        step(torch.ones(2))
        assert module.last is cfg.it
