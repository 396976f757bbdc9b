"""What a step moves among Python's objects, and the loop moves between its calls."""

from __future__ import annotations

import collections
import contextlib
import copy
import heapq
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, moves, setting, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


# --- numbers --------------------------------------------------------------------------------------


@case(forms="step")
def a_state_of_two_values_that_the_loop_sets_to_a_third():
    held = SimpleNamespace(k=1)

    def step(x):
        held.k = 3 - held.k if held.k in (1, 2) else 1
        return x[: held.k + 1] * held.k

    return moves(step, held, before5=setting(held, "k", 1), before9=setting(held, "k", 4))


@case(forms="step")
def a_counter_that_stops_and_is_set_back():
    held = SimpleNamespace(warm=0)

    def step(x):
        if held.warm < 4:
            held.warm += 1
        return x * (held.warm / 4)

    return moves(step, held, number=18, before12=setting(held, "warm", 2))


@case(forms="step")
def a_number_that_becomes_one_of_another_type():
    held = SimpleNamespace(k=1)
    values = {4: 1.0, 5: True, 6: 1, 8: -0.0, 9: 0.0, 10: 1 + 0j, 11: float("nan"), 12: 1}
    before = {number: setting(held, "k", value) for number, value in values.items()}
    return Play(lambda x: (x * held.k, torch.tensor(held.k)), [held], before, singles(14))


@case(forms="step")
def a_key_that_becomes_one_of_another_type():
    held = {1: 5}

    def other():
        held.clear()
        held[True] = 5

    return moves(lambda x: x * held[1], held, before5=other)


@case(forms="step")
def a_priority_queue():
    queue = [(1, "a"), (2, "b")]

    def step(x):
        first, name = heapq.heappop(queue)
        heapq.heappush(queue, (first % 2 + 1 if name == "a" else 2, name))
        return x * first

    return moves(step, queue, before8=lambda: queue.__setitem__(0, (0, "z")))


@case(forms="step")
def a_key_whose_error_is_caught():
    held = {}

    def step(x):
        try:
            found = held["k"]
        except KeyError:
            found, held["k"] = 1, 2
        return x * found

    return moves(step, held, before5=held.clear, before8=lambda: held.update(k=4))


@case(forms="step")
def a_stack_of_scopes():
    scopes = [0]

    @contextlib.contextmanager
    def scope(value):
        scopes.append(value)
        try:
            yield
        finally:
            scopes.pop()

    def step(x):
        with scope(3):
            inner = x * scopes[-1]
        return inner + scopes[-1]

    return moves(step, scopes, before6=lambda: scopes.__setitem__(0, 2))


@case(forms="step", slow=True)
def modules_in_turn():
    modules, held = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]), SimpleNamespace(k=0)

    def step(x):
        held.k = 1 - held.k if held.k in (0, 1) else 0
        return modules[held.k](x).detach()

    return moves(step, held, modules, before6=setting(held, "k", 1), before9=setting(held, "k", -1))


# --- tensors --------------------------------------------------------------------------------------


@case(forms="step")
def the_last_state_set_to_none():
    held = SimpleNamespace(hidden=None)

    def step(x):
        before = torch.zeros_like(x) if held.hidden is None else held.hidden
        held.hidden = torch.tanh(x + before)
        return held.hidden * 1

    change = setting(held, "hidden", None)
    return moves(step, held, before6=change, before10=setting(held, "hidden", torch.ones(5, 4)))


@case(forms="step")
def two_names_of_one_tensor_and_then_of_two():
    held = SimpleNamespace(a=torch.zeros(5, 4))
    held.b = held.a

    def step(x):
        held.a.add_(x)
        found = held.b * 2
        held.a = held.b = x * 2
        return found

    apart = setting(held, "b", torch.ones(5, 4))
    return moves(step, held, before4=apart, before7=apart)


@case(forms="step")
def a_window_of_a_tensor_that_grows():
    held = SimpleNamespace(kept=None)

    def step(x):
        held.kept = x if held.kept is None else torch.cat([held.kept, x])[-8:]
        return held.kept.sum(0)

    return moves(step, held, before9=setting(held, "kept", None))


@case(forms="step")
def a_copy_of_an_object_between_calls():
    held = SimpleNamespace(state=SimpleNamespace(total=torch.zeros(4), n=0))

    def step(x):
        held.state.total = held.state.total + x.sum(0)
        held.state.n = 1 - held.state.n
        return held.state.total * held.state.n

    def copied():
        held.state = copy.deepcopy(held.state)

    def pickled():
        held.state = pickle.loads(pickle.dumps(held.state))

    return moves(step, held, number=16, before5=copied, before9=pickled)


@case(forms="step")
def meters_in_a_dict_that_makes_them():
    class Meter:
        def __init__(self):
            self.total, self.count = 0.0, 0

        def add(self, value):
            self.total = self.total + value
            self.count += 1

    meters = collections.defaultdict(Meter)

    def step(x):
        meters["mean"].add(x.mean())
        meters["norm"].add(x.norm())
        return x * 2

    return moves(step, meters, before9=meters.clear)


@case(forms="step")
def a_cache_that_the_loop_clears():
    held = {}

    def step(x):
        if "rows" not in held:
            held["rows"] = torch.arange(5.0)[:, None]
        return x + held["rows"]

    return moves(step, held, before5=held.clear, before9=lambda: held.update(rows=torch.ones(5, 1)))


@pytest.mark.parametrize("case", case)
def test_moved(case):
    case.check()
