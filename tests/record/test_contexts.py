"""An object in a place that held another one as the step began: a context of a framework's."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.contract.models import Function
from torchgraph.testing import counters


class Context:
    """A library keeps one while a call runs: ``keras.src.layers.layer.CallContext``."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


def _assigned(state: Any, value: object) -> None:
    state.context = value


def _by_name(state: Any, value: object) -> None:
    setattr(state, "".join(["con", "text"]), value)


@pytest.mark.parametrize("put", [_assigned, _by_name])
@pytest.mark.parametrize("state", [SimpleNamespace(), threading.local()])
def test_an_object_that_each_call_makes(put, state):
    state.context = None

    def build(x):
        if getattr(state, "context", None) is None:
            put(state, Context(3.0))
        y = x * state.context.scale
        if state.context.scale == 3.0:
            put(state, None)
        return y

    graph, before = Function(build), counters.replays
    for number in range(6):
        assert torch.equal(graph(torch.full((2,), float(number))), torch.full((2,), number * 3.0))
        assert state.context is None
    assert counters.replays >= before + 3
    assert not graph.report().calls.eager


@pytest.mark.parametrize("place", ["made before", "filled in the step"])
def test_an_object_that_was_there_before_is_not_the_steps_own(place):
    other, state = Context(1.0), SimpleNamespace(context=None)

    def build(x):
        assert state.context is None
        if place == "filled in the step":
            other.bias = 2.0
        state.context = other
        y = x * state.context.scale + getattr(state.context, "bias", 0.0)
        state.context = None
        return y

    graph = Function(build)
    bias = 2.0 if place == "filled in the step" else 0.0
    for scale in (1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 7.0):
        other.scale = scale
        assert torch.equal(graph(torch.ones(2)), torch.full((2,), scale + bias))
        assert vars(other) == {"scale": scale, **({"bias": 2.0} if bias else {})}
