"""Damaged states: refused with everything as it was, or loaded as eager loads them."""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import torchgraph as tg
from tests.attack.states import GONE, OPTIMIZERS, SCHEDULES, put, same_bits
from tests.contract.models import Net, Train, data, same, snapshot
from tests.support import thinned
from torchgraph.errors import StateDictMismatch

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


def made(optimizer: str, schedule: str, scaled: bool = False, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = Net()
    parameters = [{"params": model.first.parameters()}, {"params": model.norm.parameters()}]
    parameters.append({"params": model.second.parameters(), "weight_decay": 0.01})
    if optimizer in ONE_GROUP:
        parameters = [{"params": [*model.parameters()]}]
    trained = OPTIMIZERS[optimizer](parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = Train(model, trained, SCHEDULES[schedule](trained))
    if scaled:
        graph.set_grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3))
    return graph


ONE_GROUP = ("Lion", "LBFGS")


def step(graph: Any) -> Any:
    """The next steps, in eager: what a state is worth shows in what follows from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [graph(x) for x in data(2)]


def loaded_by_eager(graph: Any, state: Any) -> None:
    """What torch makes of the parts of a state."""
    train = state["_train"]
    graph.model.load_state_dict(state["model"])
    for optimizer, saved in zip(graph._runner.live.optimizers, train["optimizers"], strict=True):
        optimizer.load_state_dict(copy.deepcopy(saved))
    for scheduler, saved in zip(graph._runner.live.schedulers, train["schedulers"], strict=True):
        scheduler.load_state_dict(copy.deepcopy(saved))
    if graph._runner.live.scaler is not None:
        graph._runner.live.scaler.load_state_dict(train["scaler"])
    torch.set_rng_state(train["rng"]["cpu"])
    graph._runner.live.schedulers.forget()


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
    optimizer = graph._runner.live.optimizers[0]
    slots = [id(slot) for slots in optimizer.state.values() for slot in slots.values()]
    return [id(value) for value in graph.model.parameters()], slots, id(optimizer.param_groups)


def test_a_damaged_state_is_refused_or_loaded_as_eager_loads_it(combination):
    check(combination, 1, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_damaged_states(combination, seed):
    check(combination, seed, 100)


# --- one place ------------------------------------------------------------------------------------


class Damage(NamedTuple):
    """A value in a place of ``_train``, in the state of a Graph that has taken so many calls."""

    value: Any
    path: tuple[Any, ...]
    optimizer: str = "AdamW"
    schedule: str = "none"
    calls: int = 0
    match: str | None = None

    def __str__(self) -> str:
        value = "gone" if self.value is GONE else self.value
        return f"{self.optimizer}, {self.schedule}: {'.'.join(map(str, self.path))} {value!r:.20}"


def first(*path: Any) -> tuple[Any, ...]:
    return ("optimizers", 0, *path)


RATES = {
    r"schedulers\.0\.base_lrs\.0": ("lambda", ("schedulers", 0, "base_lrs", 0)),
    r"param_groups\.0\.initial_lr": ("one cycle", first("param_groups", 0, "initial_lr")),
    r"param_groups\.0\.lr": ("milestones", first("param_groups", 0, "lr")),
    r"schedulers\.0\.factor": ("plateau", ("schedulers", 0, "factor")),
}
"""Rates that float32 has to hold, by what an error says of their places."""
DAMAGE = [
    *(
        Damage(value, path, "AdamW", schedule, match=match)
        for match, (schedule, path) in RATES.items()
        for value in (1e39, -1e300, math.inf, math.nan)
    ),
    *(Damage(value, ("schedulers",), match=r"_train\.schedulers") for value in ("x", 3, {}, [{}])),
    *(
        Damage("x", ("schedulers", 0, path), "SGD, plain", "a user's", match=path)
        for path in ("base_lrs", "last_epoch", "_last_lr")
    ),
    Damage("x", first("state", 0, "n"), "late slot", calls=2),
    Damage([1], first("state", 0, "n"), "late slot", calls=2),
    Damage(torch.ones(7), first("state", 0, "slow"), "late slot", calls=2),
    Damage(None, first("param_groups", 0, "lr"), "late slot", calls=2),
    Damage({}, first("state", 17), "kept aside", calls=2),
    Damage(1.0, first("param_groups", 0, "buffer"), "buffers", calls=2),
    Damage("x", first("k"), "own form", calls=2),
    Damage(None, first("inner"), "own form", calls=2),
    *(
        Damage(GONE, first("param_groups", 0, flag), name, match=flag)
        for name, flags in {
            "Lion": ("maximize", "foreach"),
            "LAMB": ("maximize", "do_bias_correction", "foreach"),
            "Adafactor": ("maximize",),
        }.items()
        for flag in flags  # the next step needs it
    ),
]
NAMED = {str(one): one for one in DAMAGE}
SELDOM = {name for name, one in NAMED.items() if one.match in RATES and one.value != 1e39}


@pytest.mark.parametrize("name", thinned(NAMED, keep=NAMED.keys() - SELDOM))
def test_a_damaged_place_is_named_and_nothing_is_loaded(name):
    damage = NAMED[name]
    graph = made(damage.optimizer, damage.schedule)
    graph.config.set_fallback("eager")
    for _ in range(damage.calls):
        step(graph)
    state = put(graph.state_dict(), damage.value, "_train", *damage.path)
    refused(graph, state, damage.match)


def refused(graph, state, match=None):
    before, held = copy.deepcopy(snapshot(graph)), identities(graph)
    with pytest.raises(StateDictMismatch, match=match):
        graph.load_state_dict(state)
    assert same_bits(snapshot(graph), before)
    assert identities(graph) == held


def test_schedules_that_are_not_there_are_left_out_where_it_is_not_strict():
    graph = made("AdamW", "none")
    graph.load_state_dict(put(graph.state_dict(), [{}], "_train", "schedulers"), strict=False)


def test_a_state_without_a_name_of_the_graphs_is_refused():
    model = nn.Linear(2, 1)
    graph = Train(model, optim.SGD(model.parameters()))
    with pytest.raises(StateDictMismatch, match="is it the state of one of its modules"):
        graph.load_state_dict(model.state_dict(), strict=False)


SLOTS = [
    *("ro", "al", "old_dirs", "old_stps", "d", "t", "prev_flat_grad", "H_diag", "prev_loss"),
    *("n_iter", "func_evals"),
]
OTHER_SLOTS = [
    *(None, "x", [], [1.0], [None] * 3, [torch.ones(2, 2)], {}, True),
    *(torch.ones(2), torch.ones(8, 8)),
]


@pytest.fixture(scope="module")
def searches():
    """A Graph with LBFGS that has stepped, one that has not, and a good state."""
    with torch.random.fork_rng():
        source, fresh = made("LBFGS", "none"), made("LBFGS", "none", seed=1)
        source.config.set_fallback("eager")
        step(source)
        return source, fresh, copy.deepcopy(source.state_dict())


@pytest.mark.parametrize("key", SLOTS)
def test_damaged_slots_of_lbfgs_are_refused(key, searches):
    source, fresh, good = searches
    slots = "_train", *first("state", 0)
    for graph in (source, fresh):
        for wrong in OTHER_SLOTS:
            refused(graph, put(good, wrong, *slots, key), key)
    refused(source, put(good, 1, *slots, "more"), "more: unexpected")
    if key != "al":  # LBFGS makes it anew
        refused(source, put(good, GONE, *slots, key), f"{key}: missing")
    source.load_state_dict(good)


def test_a_graph_that_evaluates_takes_the_state_of_one_that_trains():
    class Evaluate(tg.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def build(self, x):
            return self.model(x)

    trains = made("AdamW", "step", seed=1)
    evaluates = Evaluate(Net())
    evaluates.load_state_dict(trains.state_dict())
    assert same_bits(evaluates.model.state_dict(), trains.model.state_dict())
