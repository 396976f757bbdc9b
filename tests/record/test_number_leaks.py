"""A number of an optimizer that its step puts somewhere else: it stays what eager left there."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.record.test_number_words import Says, Word, assert_equal, trained
from tests.support import thinned

pytestmark = pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")

MAKERS: dict[str, Callable[[], Word]] = {}
SEEN: dict[str, Any] = {}


def place(maker: Callable[[], Word]) -> Callable[[], Word]:
    MAKERS[maker.__name__] = maker
    return maker


class Slotted:
    __slots__ = ("last",)


@place
def a_global() -> Word:
    SEEN.clear()

    def word(x, n, w):
        before = SEEN.get("lr", 0.5)
        SEEN["lr"] = x
        return x + before

    return word


@place
def a_list() -> Word:
    rates: list[float] = []

    def word(x, n, w):
        rates.append(x)
        return torch.ones(()) * sum(rates)

    return word


@place
def a_key() -> Word:
    known: dict[float, float] = {}

    def word(x, n, w):
        if x not in known:
            known[x] = 2 * x
        return known[x]

    return word


@place
def a_variable_around() -> Word:
    last = 0.5

    def word(x, n, w):
        nonlocal last
        before, last = last, 0.5 * last + x
        return torch.ones(()) * before

    return word


@place
def a_cache() -> Word:
    double = functools.lru_cache(lambda x: 2 * x)
    return lambda x, n, w: torch.ones(()) * double(x)


@place
def a_slot() -> Word:
    held = Slotted()

    def word(x, n, w):
        before = getattr(held, "last", 0.5)
        held.last = x
        return torch.ones(()) * before

    return word


@place
def tuples_in_a_deque() -> Word:
    pairs: deque[tuple[int, tuple[float]]] = deque(maxlen=3)

    def word(x, n, w):
        pairs.append((n, (x,)))
        return sum(rate for _, (rate,) in pairs)

    return word


@place
def a_generator() -> Word:
    def mean():
        found = 0.0
        while True:
            found = 0.5 * found + (yield found)

    running = mean()
    next(running)
    return lambda x, n, w: torch.ones(()) * running.send(x)


@place
def an_attribute_of_an_object() -> Word:
    held = SimpleNamespace(best=9.0)

    def word(x, n, w):
        held.best = min(held.best, x)
        return held.best

    return word


@pytest.mark.parametrize("name", thinned(MAKERS, keep=["a_slot", "a_generator"]))
def test_the_next_step_finds_it_as_in_eager(name):
    def rate(call: int) -> float:
        return (1.0, 0.5)[call // 4 % 2]

    eager = trained([MAKERS[name]()], graph=False, rate=rate, calls=7)[0]
    assert_equal(trained([MAKERS[name]()], graph=True, rate=rate, calls=7)[0], eager)


def test_what_the_user_finds_there_is_a_plain_number():
    rates: list[Any] = []
    trained([lambda x, n, w: rates.append((x, {x: n, "next": [x / 2]})) or x], graph=True, calls=1)
    ((x, ((key, n), (_, (half,)))),) = [(x, below.items()) for x, below in rates]
    assert list(map(type, (x, key, n, half))) == [float, float, int, float]


def test_what_lies_in_an_iterator_computes_as_a_plain_number():
    rates: list[Any] = []
    trained([lambda x, n, w: rates.append(map(abs, iter((x, n)))) or x], graph=True, calls=1)
    x, n = (held for one in rates for held in one)
    assert (type(x), x + 1, n % 2, f"{x:.1f}") == (float, 1.1, 1, "0.1")
    assert torch.equal(torch.ones(2) * x, torch.full((2,), 0.1))


def test_what_only_the_step_itself_holds_still_moves():
    class Held:
        def __init__(self, x):
            self.rates = [x]

    def word(x, n, w):
        def below(count):
            return x if not count else below(count - 1)

        settings = {"lr": Held(x).rates[0]}
        return below(2) + sum(settings.values())

    graph, run = trained([word], graph=True)
    assert_equal(graph, trained([word], graph=False)[0])
    assert run.report().calls.programs >= 4


STEPS = 0


class Counting(Says):
    def step(self, closure: Any = None) -> None:
        global STEPS
        STEPS += 1
        super().step(closure)


def test_a_global_beside_the_optimizer_keeps_what_its_step_assigns():
    globals()["STEPS"] = 0
    trained([lambda x, n, w: x], graph=True, kind=Counting, calls=2)
    assert STEPS == 2
