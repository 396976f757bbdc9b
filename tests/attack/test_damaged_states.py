"""Damaged states: refused with everything as it was, or loaded as eager loads them."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import torchgraph as tg
from tests.contract.models import Net, Train, data, same, snapshot
from tests.support import thinned
from torchgraph.errors import StateDictMismatch

SCHEDULES: dict[str, Any] = {
    "none": lambda o: None,
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 40),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 6]),
}
OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.05),
    "SGD": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "LAMB": lambda p: tg.optim.LAMB(p, lr=0.01),
    "Lion": lambda p: tg.optim.Lion(p, lr=0.01),
    "ASGD": lambda p: optim.ASGD(p, lr=0.01),
}
# optimizer, scheduler, with a scaler
COMBINATIONS = [
    ("AdamW", "step", False),
    ("SGD", "sequence", True),
    ("RMSprop", "plateau", False),
    ("NAdam", "lambda", False),
    ("AdamW", "one cycle", True),
    ("Adafactor", "restarts", False),
    ("LAMB", "chain", False),
    ("Adagrad", "milestones", False),
    ("Lion", "none", False),
    ("ASGD", "step", False),
]


def made(optimizer: str, schedule: str, scaled: bool, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = Net()
    parameters = [{"params": model.first.parameters()}, {"params": model.norm.parameters()}]
    parameters.append({"params": model.second.parameters(), "weight_decay": 0.01})
    if optimizer == "Lion":
        parameters = [{"params": model.parameters()}]
    trained = OPTIMIZERS[optimizer](parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = Train(model, trained, SCHEDULES[schedule](trained))
    if scaled:
        graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3))
    return graph


def step(graph: Any) -> Any:
    """The next steps, in eager: what a state is worth shows in what follows from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [graph(x) for x in data(2)]


def loaded_by_eager(graph: Any, state: Any) -> None:
    """What torch makes of the parts of a state."""
    train = state["_train"]
    graph.model.load_state_dict(state["model"])
    for optimizer, saved in zip(graph._runner.step.optimizers, train["optimizers"], strict=True):
        optimizer.load_state_dict(copy.deepcopy(saved))
    for scheduler, saved in zip(graph._runner.step.schedulers, train["schedulers"], strict=True):
        scheduler.load_state_dict(copy.deepcopy(saved))
    if graph._runner.step.scaler is not None:
        graph._runner.step.scaler.load_state_dict(train["scaler"])
    torch.set_rng_state(train["rng"]["cpu"])
    graph._runner.step.schedulers.forget()


# --- damage --------------------------------------------------------------------------------------


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in a state."""
    items = (
        state.items()
        if isinstance(state, dict)
        else enumerate(state)
        if isinstance(state, (list, tuple))
        else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


WRONG = [
    *(None, True, 0, 1, -1, 3, 0.5, -0.5, 1e300, 10**400, math.nan, math.inf, -math.inf, 1j),
    *("", "x", b"x", [], {}, (), [1], {"a": 1}, {1}, object(), int, nn.Linear(1, 1)),
    *(torch.ones(()), torch.ones(3), torch.ones(7, 7), torch.zeros(0)),
    *(torch.ones(2, device="meta"), torch.eye(2).to_sparse(), torch.tensor(1j), torch.tensor(-5.0)),
]  # fmt: skip


def other(value: Any, chance: random.Random) -> Any:
    """Something in the place of a value; most often near to it."""
    if chance.random() < 0.5:
        return chance.choice(WRONG)
    if isinstance(value, torch.Tensor):
        forms = [
            lambda: value.to(torch.complex64) if value.dtype is not torch.uint8 else value[:-1],
            lambda: value.to(torch.int32),
            lambda: value.double(),
            lambda: value.to("meta"),
            lambda: value.to_sparse() if value.ndim else value.reshape(1),
            lambda: value[None],
            lambda: value.flatten(),
            lambda: value[..., :-1] if value.ndim else -value,
            lambda: torch.full_like(value, 0 if value.dtype is torch.uint8 else -1),
            lambda: torch.randint_like(value, 100),
            lambda: value.tolist(),
            lambda: torch.full_like(value, math.nan) if value.is_floating_point() else ~value,
        ]
        return chance.choice(forms)()
    if isinstance(value, dict):
        renamed = {f"{key}_" if isinstance(key, str) else key + 1: v for key, v in value.items()}
        return chance.choice([renamed, {}, list(value.items()), {**value, "more": 1}, {3.5: value}])
    if isinstance(value, (list, tuple)):
        return chance.choice([[*value, *value], list(value)[:-1], list(value)[::-1], {0: value}])
    if isinstance(value, (int, float)):
        return chance.choice(
            [-value, value + 1, str(value), [value], value * 1e10, 1 / 3, not value]
        )
    return [value]


def damaged(state: Any, chance: random.Random) -> tuple[Any, str]:
    """A copy with a place or two that are gone, replaced or twice there, and what was done."""
    state, done = copy.deepcopy(state), []
    for _ in range(chance.choice([1, 1, 1, 2])):
        path = chance.choice(list(places(state)))
        found = state
        for key in path[:-1]:
            found = found[key]
        if isinstance(found, tuple) or (chance.random() < 0.25 and isinstance(found, list)):
            continue
        if chance.random() < 0.25:
            del found[path[-1]]
            done.append(f"del {path}")
        else:
            found[path[-1]] = new = other(found[path[-1]], chance)
            done.append(f"{path} = {new!r:.80}")
    return state, "; ".join(done)


@pytest.fixture(
    scope="module",
    params=thinned(COMBINATIONS, keep=[*COMBINATIONS[:3], ("LAMB", "chain", False)]),
    ids=lambda c: "-".join(map(str, c)),
)
def combination(request):
    """A Graph that has trained, one that has not, one for eager, a good state and what follows."""
    with torch.random.fork_rng():
        source = made(*request.param, seed=5)
        step(source)
        step(source)
        state = copy.deepcopy(source.state_dict())
        expected = step(source), copy.deepcopy(source.state_dict())
        trained, fresh, eager = (made(*request.param, seed) for seed in (0, 1, 2))
        step(trained)
        return {"trained": trained, "fresh": fresh}, eager, request.param, state, expected


def check(combination, seed, count):
    graphs, eager, kind, good, expected = combination
    chance = random.Random(seed)
    found = {"refused": 0, "loaded": 0}
    for number in range(count):
        graph = graphs["fresh" if number % 3 == 0 else "trained"]
        state, done = damaged(good, chance)
        before, held = snapshot(graph), identities(graph)
        try:
            graph.load_state_dict(state)
        except StateDictMismatch:
            assert same_bits(snapshot(graph), before), done
            assert identities(graph) == held, done
            found["refused"] += 1
            continue
        found["loaded"] += 1
        mine = follows(graph)
        if number % 3 == 0:
            graphs["fresh"] = made(*kind, 1)
        eager = made(*kind, 2)
        loaded_by_eager(eager, state)
        assert same_bits(mine, follows(eager)), done
    for graph in graphs.values():
        graph.load_state_dict(good)
        assert same((step(graph), graph.state_dict()), expected)
    assert found["refused"] > found["loaded"] // 2
    return found


def follows(graph):
    try:
        results = step(graph)
    except ValueError as error:
        if "Tried to step" not in str(error):
            raise
        return str(error)  # OneCycleLR at its end
    state = graph.state_dict()
    return results, state["model"], state["_train"]["optimizers"], state["_train"]["schedulers"]


def identities(graph):
    optimizer = graph._runner.step.optimizers[0]
    slots = [id(slot) for slots in optimizer.state.values() for slot in slots.values()]
    return [id(value) for value in graph.model.parameters()], slots, id(optimizer.param_groups)


def same_bits(left: Any, right: Any) -> bool:
    """As `same`, and NaN is NaN."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        alike = left.dtype == right.dtype and left.shape == right.shape
        return alike and left.layout == right.layout and torch.equal(bits(left), bits(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same_bits(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_bits, left, right))
    return bool(left == right) or (left != left and right != right)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def test_a_damaged_state_is_refused_or_loaded_as_eager_loads_it(combination):
    check(combination, 1, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_damaged_states(combination, seed):
    check(combination, seed, 100)


@pytest.mark.parametrize(
    ("schedule", "path"),
    [
        ("lambda", ("schedulers", 0, "base_lrs", 0)),
        ("one cycle", ("optimizers", 0, "param_groups", 0, "initial_lr")),
        ("milestones", ("optimizers", 0, "param_groups", 0, "lr")),
        ("plateau", ("schedulers", 0, "factor")),
    ],
)
@pytest.mark.parametrize("value", thinned([1e39, -1e300, math.inf, math.nan], keep=[1e39]))
def test_a_rate_that_float32_does_not_hold_is_refused(schedule, path, value):
    graph = made("AdamW", schedule, scaled=False)
    state = copy.deepcopy(graph.state_dict())
    found = state["_train"]
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    with pytest.raises(StateDictMismatch, match=".".join(map(str, path))):
        graph.load_state_dict(state)


@pytest.mark.parametrize("found", ["x", 3, {}, [{}]])
def test_schedules_are_refused_where_there_are_none(found):
    graph = made("AdamW", "none", scaled=False)
    state = copy.deepcopy(graph.state_dict())
    state["_train"]["schedulers"] = found
    with pytest.raises(StateDictMismatch, match=r"_train\.schedulers"):
        graph.load_state_dict(state)
    if found == [{}]:
        graph.load_state_dict(state, strict=False)


def test_a_graph_that_evaluates_takes_the_state_of_one_that_trains():
    class Evaluate(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    trains = made("AdamW", "step", scaled=False, seed=1)
    evaluates = Evaluate(Net())
    evaluates.load_state_dict(trains.state_dict())
    assert same_bits(evaluates.model.state_dict(), trains.model.state_dict())
