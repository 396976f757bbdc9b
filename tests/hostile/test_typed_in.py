"""Steps that have no file: typed in, read from a pipe, run by ``exec``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.plays import Play, singles
from tests.cases.table import Table

case = Table("step graph", says=None)


def _typed(text: str, file: str = "<stdin>", **names: Any) -> Any:
    """The function ``made`` of a text, over these names."""
    space = {"torch": torch, **names}
    exec(compile(text, file, "exec"), space)
    return space["made"]()


_HEADS = """
def made():
    def step(x, t):
        loss = heads[t](x).sum()
        loss.backward()
        return loss.detach()
    return step
"""
_PAIR = """
def made():
    held = {"n": (1, torch.zeros(5, 4))}
    def step(x):
        v = x * 2; held["n"] = (1, v); return x + held["n"][1]
    return held, step
"""


def _heads(file: str) -> Play:
    heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def replace() -> None:
        heads[1] = nn.Linear(4, 1)

    step = _typed(_HEADS, file, heads=heads)
    calls = [(*one, number % 2) for number, one in enumerate(singles(20))]
    return Play(step, [heads], {8: replace}, calls)


case.rows(
    {
        "a_module_that_the_loop_replaces_in_a_list": lambda: _heads("<stdin>"),
        "a_module_that_the_loop_replaces_in_a_notebook": lambda: _heads("<ipython-input-1>"),
    },
    forms="step",
    serves=True,
)


@case(forms="step", serves=True)
def a_tuple_that_is_put_and_read_in_one_line():
    held, step = _typed(_PAIR)
    return Play(step, [held], {}, singles(8))


@pytest.mark.parametrize("case", case)
def test_typed_in(case):
    case.check()
