"""What a step asks of the process is asked again, or named: no other number comes in silence."""

from __future__ import annotations

import math
import re
import warnings

import pytest
import torch

import torchgraph as tg
from tests.record import asked_files, asked_logs
from tests.record.asked_cases import CASES, result_of
from torchgraph.errors import InvalidOption, UnknownFunctionWarning
from torchgraph.record.ambient import functions

assert vars(asked_files).keys() & CASES
assert vars(asked_logs).keys() & CASES


@pytest.mark.parametrize("name", CASES)
def test_each_call_gives_what_eager_gives(name, tmp_path):
    expected, _, _ = result_of(name, tmp_path / "eager", graph=False)
    found, said, calls = result_of(name, tmp_path / "graph", graph=True)
    case = CASES[name]
    assert found == expected
    if case.eager:
        assert calls.programs == 0
        assert any(re.search(case.eager, text) for text in said)
    else:
        assert calls.programs > 0
        assert [text for text in said if not (case.said and re.search(case.said, text))] == []
        assert bool(said) == bool(case.said)


@pytest.fixture
def foreign(monkeypatch):
    """A function in C of a package that nobody knows."""
    monkeypatch.setattr(functions, "is_foreign", lambda module: module == "math")
    return math.gamma


def graph_of(weight) -> tg.Graph:
    step = tg.step(lambda x: x * weight(3.0))
    step.config.set_backend("aten")
    return step


def test_code_in_c_that_nobody_knows_is_named_once(foreign):
    step = graph_of(foreign)
    step(torch.ones(2))
    with pytest.warns(UnknownFunctionWarning, match=r"math.gamma .*\n  Fix: .*tg.pure"):
        step(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(3))
        step(torch.ones(3))
    assert step.report().calls.programs == 0


def test_a_function_that_is_pure_needs_no_word(foreign):
    assert tg.pure(foreign) is foreign
    step = graph_of(foreign)
    for _ in range(4):
        step(torch.ones(2))
    assert step.report().calls.programs == 2


def test_nothing_else_is_pure():
    with pytest.raises(InvalidOption):
        tg.pure(3)
