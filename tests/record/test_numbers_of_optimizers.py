"""Numbers in an optimizer's state that its step hands on: to tensors, to functions, to C."""

import collections
import contextlib
import json
import math
import random
import warnings

import pytest
import torch

import torchgraph as tg
from tests.cases.plays import descent

CALLS = 6


class Handing(torch.optim.Optimizer):
    """Scales its update by what ``use`` makes of a count ``k`` and a factor ``v`` of its state."""

    def __init__(self, parameters, use):
        super().__init__(parameters, {"lr": 0.1})
        self.use = use
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"k": 4, "v": 0.3}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                p.sub_(p.grad * self.use(state["k"], state["v"]), alpha=group["lr"])
                state["k"] += 1
                state["v"] *= 1.1


def run(use, *, graph, fallback=True):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = Handing(model.parameters(), use)

    step = descent(model, optimizer)
    if graph:
        step = tg.step(step)
        step.config.set_backend("aten")
        if fallback:
            step.config.set_fallback("eager")
    losses = [step(torch.ones(3, 2)).item() for _ in range(CALLS)]
    left = [repr(sorted(state.items())) for state in optimizer.state.values()]
    return step, (losses, [p.tolist() for p in model.parameters()], left)


def alike(use):
    """The step, whose run was bitwise that of eager."""
    _, eager = run(use, graph=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        step, found = run(use, graph=True)
    assert found == eager
    return step


def tensors(k, v):
    like = torch.ones(2, dtype=torch.float64)
    made = [
        torch.tensor([v]),
        torch.tensor([[k, v], (True, 2)]),
        torch.tensor([k, True]),
        torch.tensor([k + 2**60], dtype=torch.float32),
        torch.tensor(k + 2**60, dtype=torch.float32),
        torch.tensor((v, 2), dtype=torch.float16, device="cpu"),
        torch.tensor(data=[v], dtype=torch.bfloat16),
        torch.as_tensor([k], dtype=torch.float64),
        torch.asarray(obj=[v, k]),
        like.new_tensor([v, k]),
        like.long().new_tensor(k),
        like.new_full((2,), v),
        torch.full((2,), k),
    ]
    return sum(one.double().sum().sin() for one in made)


def functions(k, v):
    whole, rest = divmod(k, 3)
    made = [whole, rest, int(10 * v), int(k), float(k), round(v, 2), math.log(v), math.log1p(v)]
    made += [math.hypot(v, k), math.floor(10 * v), k // 3, v % 0.3, ~k, max(1, v), min(k, 2.5)]
    made += [int(v.is_integer()), math.fmod(k, 3), abs(v - 1), pow(v, k)]
    return torch.tensor(sum(made))


@pytest.mark.parametrize("use", [tensors, functions])
def test_has_a_program(use):
    calls = alike(use).report().calls
    assert calls.programs >= 2
    assert not calls.eager


def test_types_are_those_of_python():
    alike(lambda k, v: 1.5 if type(max(1, v)) is int else 0.5)
    alike(lambda k, v: range(1)[int(v)] + 1.0 * max(0, k))


def seeded(k, v):
    return torch.rand((), generator=torch.Generator().manual_seed(k))


def draws(k, v):
    return random.Random(k + 2**70).random() + random.Random(-k).random()


def caught(k, v):
    try:
        return float(json.dumps(k))
    except TypeError:
        return 0.25


def suppressed(k, v):
    found = 0.25
    with contextlib.suppress(Exception):
        found = torch.Generator().manual_seed(k).initial_seed() * 0.1
    return found


@pytest.mark.parametrize("use", [seeded, draws, caught, suppressed])
def test_code_in_c_gets_pythons_own(use):
    """Where it raises, whether the step catches that or not, and where it would not complain."""
    calls = alike(use).report().calls
    assert not calls.programs
    assert "code that takes no moving one" in calls.eager[0].why


def test_the_way_to_eager_needs_no_option():
    """What is written after a step has gone over to eager is not taken for writes unheard."""

    def counted(k, v):
        return float(len(collections.deque(range(9), maxlen=k)))

    _, eager = run(counted, graph=False)
    step, found = run(counted, graph=True, fallback=False)
    assert found == eager
    assert "code that takes no moving one" in step.report().calls.eager[0].why


def test_an_error_that_is_the_steps_own_is_served():
    def missing(k, v):
        try:
            return object().scale
        except AttributeError:
            return v

    assert alike(missing).report().calls.programs


def test_an_error_of_plain_numbers_as_well_is_the_users():
    def wrong(k, v):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(wrong, graph=True)


def test_an_optimizer_of_no_module():
    """`exec` in an empty namespace makes classes whose methods name none."""
    names = {"Base": torch.optim.SGD}
    exec("class Own(Base):\n def step(self, closure=None):\n  return super().step()", names)
    model = torch.nn.Linear(2, 2)
    optimizer = names["Own"](model.parameters(), lr=0.1)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(4):
        step(torch.ones(1, 2))
    assert step.report().calls.programs
