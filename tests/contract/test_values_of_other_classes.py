"""Values that a step moves and that are no Python numbers: arrays, NumPy's numbers, fractions."""

from __future__ import annotations

import datetime
import functools
from array import array
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.support import thinned_rows

CALLS = 6
pytestmark = pytest.mark.filterwarnings("ignore::torchgraph.errors.GraphWarning")  # it is eager's


class Count(int):
    """A number of a class of the user's."""

    def __add__(self, other: int) -> Count:
        return Count(int(self) + other)


START: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(2),
    "no dimension": lambda: np.zeros(()),
    "objects": lambda: np.array([0, 0], dtype=object),
    "float64": lambda: np.float64(0),
    "float32": lambda: np.float32(0),
    "int64": lambda: np.int64(0),
    "fraction": lambda: Fraction(0),
    "decimal": lambda: Decimal(0),
    "complex": lambda: 0j,
    "flag": lambda: False,
    "class": lambda: Count(0),
    "Python's array": lambda: array("d", [0.0]),
    "bytes": lambda: bytearray(2),
}


def augmented(held: Any) -> None:
    held.value += 1


def replaced(held: Any) -> None:
    held.value = held.value + 1


def by_name(held: Any) -> None:
    name = "value"
    setattr(held, name, getattr(held, name) + 1)


def in_a_dict(held: Any) -> None:
    held.places["value"] += 1


def in_a_list(held: Any) -> None:
    held.row[0] += 1


def an_item(held: Any) -> None:
    held.value[0] = held.value[0] + 1


def filled(held: Any) -> None:
    held.value.fill(held.value[0] + 1)


def out(held: Any) -> None:
    np.add(held.value, 1, out=held.value)


def appended(held: Any) -> None:
    held.value.append(1)


MOVES = (augmented, replaced, by_name, in_a_dict, in_a_list)
HOLDERS = ("an object", "a module", "a Graph")
NUMBERS = list(START)[:11]
WRITES = [("array", one) for one in (an_item, filled, out)]
WRITES += [("objects", an_item), ("Python's array", appended), ("bytes", appended)]
ROWS = [(kind, move, who) for kind in NUMBERS for move in MOVES for who in HOLDERS]
ROWS += [(kind, move, who) for kind, move in WRITES for who in HOLDERS]


def often(kind: str, move: Callable[[Any], None], who: str) -> bool:
    """Each kind and move once, and each holder with an array and with a number."""
    written = (kind, move) in WRITES and who == "a module"
    return (
        written
        or (move, who) == (augmented, "a module")
        or (
            (kind, who) in (("array", "an object"), ("float64", "an object"))
            or (kind, move, who)
            in (("array", replaced, "a Graph"), ("float64", in_a_list, "a Graph"))
        )
    )


def given(held: Any, start: Callable[[], Any]) -> Any:
    held.value, held.places, held.row = start(), {"value": start()}, [start()]
    return held


class Train(tg.Graph):
    def __init__(self, module: nn.Module, start: Callable[[], Any], before: Any) -> None:
        super().__init__()
        self.module, self.before = given(module, start), before
        given(self, start)
        self.add_optimizer(torch.optim.SGD(module.parameters(), lr=0.1))

    def build(self, x: torch.Tensor) -> torch.Tensor:
        self.before(self)
        loss = self.module(x).mean()
        loss.backward()
        return loss


class Moving(nn.Linear):
    """Moves what it holds."""

    def __init__(self, move: Callable[[Any], None]) -> None:
        super().__init__(3, 1)
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.move(self)
        return super().forward(x)


def moving(move: Callable[[Any], None], who: str, start: Callable[[], Any]) -> tuple[Any, Any]:
    """The step or the Graph, and the object whose values each call moves."""
    if who == "a Graph":
        graph = Train(nn.Linear(3, 1), start, move)
        return graph, graph
    module = given(Moving(move if who == "a module" else lambda _: None), start)
    held = module if who == "a module" else given(SimpleNamespace(), start)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    @tg.step
    def step(x):
        if who == "an object":
            move(held)
        optimizer.zero_grad()
        loss = module(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, held


@pytest.mark.parametrize(("kind", "move", "who"), thinned_rows(ROWS, often))
def test_each_call_moves_it(kind: str, move: Callable[[Any], None], who: str) -> None:
    run, held = moving(move, who, START[kind])
    run.config.set_fallback("eager")
    run.config.set_look_again("off")  # it is right without
    alone = given(SimpleNamespace(), START[kind])
    for _ in range(CALLS):
        run(torch.ones(2, 3))
        move(alone)
        found = [held.value, held.places, held.row]
        assert repr(found) == repr([alone.value, alone.places, alone.row])


def test_a_date_a_variable_of_a_function_and_attributes_that_are_filled_at_once() -> None:
    day, total = datetime.datetime(2026, 1, 1), np.float64(0)
    held, layer = SimpleNamespace(value=np.zeros(1), raw=bytearray(b"a")), nn.Linear(2, 1)

    @tg.step
    def step(x):
        nonlocal day, total
        day += datetime.timedelta(days=1)
        total += 0.5
        return layer(x).sum()

    @tg.step
    def other(x):
        vars(held).update(value=held.value + 1)
        return layer(x).sum()

    for _ in range(CALLS):
        step(torch.ones(1, 2))
        other(torch.ones(1, 2))
    assert (day.day, float(total)) == (1 + CALLS, 0.5 * CALLS)
    assert (held.value.tolist(), held.raw) == ([CALLS], b"a")


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_a_cache_that_is_cleared_between_calls_is_asked_again(filled: bool) -> None:
    box, layer = SimpleNamespace(value=1.5), nn.Linear(2, 1)

    @functools.lru_cache
    def scale() -> float:
        return float(box.value)

    @tg.step
    def step(x):
        return (layer(x) * scale()).sum()

    x = torch.ones(1, 2)
    scale()
    for _ in range(4):
        step(x)
    assert step.report().calls.programs
    box.value = 2.5
    scale.cache_clear()
    if filled:
        scale()
    step.config.set_look_again("off")
    assert step(x) == (layer(x) * 2.5).sum()
