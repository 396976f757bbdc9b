"""Values that a step moves and that are no Python numbers: arrays, NumPy's numbers, fractions."""

from __future__ import annotations

import copy
import datetime
import functools
import warnings
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

CALLS = 6


class _Count(int):
    """A number of a class of the user's."""

    def __add__(self, other: int) -> _Count:
        return _Count(int(self) + other)


START: dict[str, Callable[[], Any]] = {
    "an array": lambda: np.zeros(2),
    "an array of no dimension": lambda: np.zeros(()),
    "an array of objects": lambda: np.array([0, 0], dtype=object),
    "float64": lambda: np.float64(0),
    "float32": lambda: np.float32(0),
    "int64": lambda: np.int64(0),
    "a fraction": lambda: Fraction(0),
    "a decimal": lambda: Decimal(0),
    "complex": lambda: 0j,
    "a flag": lambda: False,
    "a class of the user's": lambda: _Count(0),
}


def _augmented(held: Any) -> None:
    held.value += 1


def _replaced(held: Any) -> None:
    held.value = held.value + 1


def _by_name(held: Any) -> None:
    name = "value"
    setattr(held, name, getattr(held, name) + 1)


def _in_a_dict(held: Any) -> None:
    held.places["value"] += 1


def _in_a_list(held: Any) -> None:
    held.row[0] += 1


MOVES = (_augmented, _replaced, _by_name, _in_a_dict, _in_a_list)


class _Module(nn.Module):
    def __init__(self, move: Callable[[Any], None], start: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self.move, self.value = nn.Linear(3, 1), move, start()
        self.places, self.row = {"value": start()}, [start()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.move(self)
        out: torch.Tensor = self.layer(x)
        return out


def _moved(holder: str, move: Callable[[Any], None], start: Callable[[], Any]) -> list[Any]:
    """What lies in the holder after each of some calls."""
    torch.manual_seed(0)
    module = _Module(move if holder == "a module" else lambda _: None, start)
    held: Any = SimpleNamespace(value=start(), places={"value": start()}, row=[start()])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        if holder == "an object":
            move(held)
        optimizer.zero_grad()
        loss = module(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    class Train(tg.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.value = module, start()
            self.places, self.row = {"value": start()}, [start()]
            self.add_optimizer(optimizer)

        def build(self, x: torch.Tensor) -> torch.Tensor:
            move(self)
            loss = self.module(x).mean()
            loss.backward()
            return loss

    run: Any = Train() if holder == "a Graph" else tg.step(step)
    run.config.set_fallback("eager")
    run.config.set_look_again("off")  # it is right without
    place = {"a Graph": run, "a module": module}.get(holder, held)
    found = []
    for _ in range(CALLS):
        run(torch.ones(2, 3))
        found.append(copy.deepcopy([place.value, place.places, place.row]))
    return found


def _rows() -> list[Any]:
    """All kinds in all places by all moves; the alike ones are left to slow runs."""
    found = []
    for kind in START:
        for holder in ("an object", "a module", "a Graph"):
            for move in MOVES:
                often = kind in ("an array", "float64") or (holder, move) == (
                    "a module",
                    _augmented,
                )
                marks = [] if often else [pytest.mark.slow]
                name = f"{kind}-{holder}-{move.__name__}"
                found.append(pytest.param(kind, holder, move, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("kind", "holder", "move"), _rows())
def test_each_call_moves_it(kind: str, holder: str, move: Callable[[Any], None]) -> None:
    held: Any = SimpleNamespace(
        value=START[kind](), places={"value": START[kind]()}, row=[START[kind]()]
    )
    expected = []
    for _ in range(CALLS):
        move(held)
        expected.append(copy.deepcopy([held.value, held.places, held.row]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stays in eager
        found = _moved(holder, move, START[kind])
    assert repr(found) == repr(expected)


IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "an item": (lambda: np.zeros(2), lambda held: held.__setitem__(0, held[0] + 1)),
    "fill": (lambda: np.zeros(2), lambda held: held.fill(held[0] + 1)),
    "out": (lambda: np.zeros(2), lambda held: np.add(held, 1, out=held)),
    "an array of Python's": (lambda: array("d", [0.0]), lambda held: held.append(1.0)),
    "an item of objects": (
        lambda: np.array([0, 0], dtype=object),
        lambda held: held.__setitem__(0, held[0] + 1),
    ),
    "bytes": (lambda: bytearray(2), lambda held: held.extend(b"x")),
}


@pytest.mark.parametrize("holder", ["an object", "a module", "a Graph"])
@pytest.mark.parametrize("kind", IN_PLACE)
def test_each_call_writes_into_it(kind: str, holder: str) -> None:
    start, write = IN_PLACE[kind]
    expected = start()
    for _ in range(CALLS):
        write(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _moved(holder, lambda held: write(held.value), start)
    assert repr(found[-1][0]) == repr(expected)


def test_a_date_and_a_variable_of_a_function() -> None:
    day, total = datetime.datetime(2026, 1, 1), np.float64(0)
    layer = nn.Linear(2, 1)

    @tg.step
    def step(x):
        nonlocal day, total
        day += datetime.timedelta(days=1)
        total += 0.5
        return layer(x).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(CALLS):
            step(torch.ones(1, 2))
    assert (day.day, float(total)) == (1 + CALLS, 0.5 * CALLS)


def test_attributes_that_are_filled_at_once_beside_bytes() -> None:
    held, layer = SimpleNamespace(value=np.zeros(1), raw=bytearray(b"a")), nn.Linear(2, 1)

    @tg.step
    def step(x):
        vars(held).update(value=held.value + 1)
        return layer(x).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(CALLS):
            step(torch.ones(1, 2))
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
