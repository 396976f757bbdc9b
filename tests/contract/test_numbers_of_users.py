"""Numbers in the user's own places, which the step moves: inputs and outputs of the program."""

from __future__ import annotations

import copy
import decimal
import json
import math
import pickle
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import torchgraph as tg
from tests.contract.number_loops import LOOPS, AverageMeter, Trainer, base, trained
from torchgraph.errors import EagerWarning
from torchgraph.testing import counters

Between = Callable[[int], None]


def shown(step: Any, state: Callable[[], tuple[Any, ...]], calls: int, between: Between):
    """What each call gives and leaves, to the bit and with its types."""
    found = []
    for number in range(calls):
        between(number)
        given = step(torch.full((4, 6), number % 3 + 1.0))
        given = given if isinstance(given, dict) else {"": given}
        values = [v.tolist() if torch.is_tensor(v) else v for v in given.values()]
        found.append((repr(values), repr(state()), [type(one) for one in state()]))
    return found


def served(make: Any, calls: int = 14, between: Any = None, programs: int = 8) -> int:
    """How many calls programs have served; all are as in eager."""
    between = between or (lambda held: lambda number: None)
    step, state = make()
    expected = shown(step, state, calls, between(step))
    step, state = make()
    step = tg.step(step)
    step.config.set_cache_size(programs)
    before = counters.replays
    assert shown(step, state, calls, between(step)) == expected
    return counters.replays - before


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_served_as_in_eager(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", EagerWarning)
        assert served(LOOPS[name]) >= 6


def test_the_length_of_a_list_of_numbers_counts():
    """Each length has a program, or runs in eager: nobody goes on past the end of the window."""

    def make():
        t, window = Trainer(), []

        def step(x):
            loss = t.train(x)
            window.append(loss.item())
            if len(window) == 4:
                t.avg = sum(window) / 4
                window.clear()
            return loss

        return step, lambda: (t.avg, *window)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        served(make, 20)


def test_a_branch_at_step_40_of_60():
    def make():
        t = Trainer()

        def step(x):
            t.n += 1
            loss = t.train(x, 0.5 if t.n > 40 else 1.0)
            t.avg = 0.99 * t.avg + 0.01 * loss.item()
            return loss

        return step, lambda: (t.n, t.avg)

    assert served(make, 60) >= 54


def test_what_the_loop_assigns_between_calls_is_seen():
    held = []

    def make():
        t, meter = Trainer(), AverageMeter()
        held[:] = [t, meter]

        def step(x):
            t.n += 1
            loss = t.train(x, 1 / t.n)
            t.optimizer.param_groups[0]["lr"] *= 0.9
            meter.update(loss.item(), len(x))
            return loss

        return step, lambda: (t.n, t.rate, meter.avg, meter.sum, meter.count)

    def between(_):
        def assign(number):
            t, meter = held
            if number % 5 == 4:
                t.n, t.optimizer.param_groups[0]["lr"] = 10 * number, 0.02
            if number == 9:
                t.n = 2.5  # of another type
            if number == 12:
                meter.reset()

        return assign

    assert served(make, 24, between) >= 12


def test_after_load_state_dict():
    held = []

    def make():
        t = Trainer()
        t.optimizer = torch.optim.Adam(t.net.parameters(), 0.01)
        held[:] = [t]

        def step(x):
            t.n += 1
            t.set_rate(0.01 / t.n)
            loss = t.train(x)
            t.avg += loss.item()
            return loss

        return step, lambda: (t.n, t.avg, t.rate, t.net.weight.sum().item())

    def between(_):
        saved: list[Any] = []

        def load(number):
            t = held[0]
            if number == 5:
                now = (t.net.state_dict(), t.optimizer.state_dict(), t.n, t.avg)
                saved.extend(copy.deepcopy(now))
            if number == 9:
                t.net.load_state_dict(saved[0])
                t.optimizer.load_state_dict(copy.deepcopy(saved[1]))
                t.n, t.avg = saved[2:]

        return load

    assert served(make, 16, between) >= 8


def caught(n):
    try:
        return json.dumps({"n": n})
    except TypeError:
        return "no number"


def arrays(n):
    numpy = pytest.importorskip("numpy")
    kinds = (numpy.ones(2, numpy.float32) * n, numpy.float32(2) * n, numpy.array([n, 1]))
    return [str(one.dtype) for one in kinds]


TAKEN = {
    "json": lambda n: json.dumps({"n": n}),
    "caught": caught,
    "Decimal": decimal.Decimal,
    "pickle": pickle.dumps,
    "text": lambda n: f"{n:03d} {n} {n!r}",
    "type": lambda n: type(n).__name__,
    "arrays": arrays,
    "keys": lambda n: ({n: 1}, n in {3, 5}),
    "indices": lambda n: ([7, 8, 9][n % 3], list(range(n))[:2]),
}
"""Code that takes Python's own numbers alone, or asks which ones it got."""


@pytest.mark.parametrize("name", TAKEN)
def test_code_that_takes_pythons_own_numbers_gets_them(name):
    """Or the call is made again, with plain ones: nobody sees another number than in eager."""
    taken = TAKEN[name]

    def make():
        (net, optimizer), state, found = base(), {"n": 0}, []

        def step(x):
            state["n"] += 1
            found.append(taken(state["n"]))
            return trained(net, optimizer, x)

        return step, lambda: (*state.values(), *found)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        served(make, 7, programs=2)


def inverted(n, v):
    try:
        return n, 1 / (n % 3)
    except ZeroDivisionError:
        return n, 0.0


def overflows(n, v):
    try:
        return n, math.exp(1.5 * v)
    except OverflowError:
        return n, 1.0


def rounds(n, v):
    try:
        return math.floor(v), v * 1e100 + 1
    except OverflowError:
        return -1, 0.5


def complex_roots(n, v):
    return n, abs((3.5 - n) ** 0.5)


@pytest.mark.parametrize("made", [inverted, overflows, rounds, complex_roots])
def test_whether_a_number_raises_is_a_way_that_python_goes(made):
    """Caught in the step, and so is where a root leaves the real numbers."""

    def make():
        t = Trainer()

        def step(x):
            t.n, t.avg = made(t.n + 1, t.avg)
            return t.train(x)

        return step, lambda: (t.n, t.avg)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        served(make, 14)


def test_a_number_that_is_moved_in_a_container_of_numbers_is_followed():
    """Containers in which the step has read and moved numbers are looked through."""

    def make():
        (net, optimizer), window, sums = base(), deque([9.0] * 3, 3), {0: 0.0, 1: 0.0}

        def step(x):
            loss = trained(net, optimizer, x)
            value = loss.item()
            optimizer.param_groups[0]["lr"] *= 0.5 if value > max(window) else 0.9
            sums[int(value > min(window))] += value
            window.append(value)
            return loss

        return step, lambda: (*window, *sums.values())

    with warnings.catch_warnings():
        warnings.simplefilter("error", EagerWarning)
        assert served(make, 20) >= 6


def test_a_number_as_an_index_or_a_key_is_told_so():
    t, found = Trainer(), {}

    @tg.step
    def step(x):
        t.n += 1
        found[t.n] = 1.0  # here
        return t.train(x)

    step.config.set_cache_size(2)
    with pytest.warns(EagerWarning, match=r"an index or a key was \d+ and is \d+ .*# here"):
        list(map(step, [torch.ones(4, 6)] * 8))
    assert list(found) == list(range(1, 9))


class Sums(NamedTuple):
    n: int
    total: float


def test_numbers_in_a_tuple_with_names_stay_in_eager_with_their_line():
    def make():
        t, held = Trainer(), [Sums(0, 0.0)]

        def step(x):
            loss = t.train(x)
            held[0] = Sums(held[0].n + 1, held[0].total + loss.item())  # here
            return loss

        return step, lambda: (held[0], type(held[0].total))

    with pytest.warns(EagerWarning, match=r"decides.*# here"):
        served(make, 8, programs=2)


def test_a_list_of_numbers_that_grows_is_told_so():
    t, window = Trainer(), []

    @tg.step
    def step(x):
        loss = t.train(x)
        window.append(loss.item())
        return sum(window)  # here

    with pytest.warns(EagerWarning, match=r"sum> takes \d values where it took \d .*# here"):
        list(map(step, [torch.ones(4, 6)] * 6))


def test_a_call_that_is_made_again_leaves_nothing_behind():
    t, seen = Trainer(), []

    @tg.step
    def step(x):
        t.n += 1
        loss = t.train(x)
        seen.append(json.dumps(t.n))  # here
        return loss

    eager = Trainer()
    batches = [torch.ones(4, 6)] * 4
    for x in batches:
        eager.train(x)
    with pytest.warns(EagerWarning, match=r"takes Python's own alone.*JSON.*# here"):
        list(map(step, batches))
    assert seen == ["1", "2", "3", "4"]
    assert t.n == 4
    assert torch.equal(t.net.weight, eager.net.weight)


def test_a_division_by_zero_is_raised_in_the_users_line():
    t = Trainer()

    @tg.step
    def step(x):
        t.n -= 1
        return t.train(x, 10 / t.n)

    t.n = 8
    for _ in range(7):
        step(torch.ones(4, 6))
    before = t.net.weight.detach().clone()
    with pytest.raises(ZeroDivisionError):
        step(torch.ones(4, 6))
    assert (t.n, torch.equal(t.net.weight, before)) == (0, True)
    step(torch.ones(4, 6))
    assert t.n == -1


def test_micro_batches_move_a_number_each():
    class Counts(tg.Graph):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.model, self.calls = torch.nn.Linear(6, 6), 0
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), 0.01))
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x):
            self.calls += 1
            loss = self.model(x).square().mean() * self.calls
            loss.backward()
            return loss

    graph = Counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        for _ in range(6):
            graph(torch.ones(4, 6))
    assert graph.calls == 12
