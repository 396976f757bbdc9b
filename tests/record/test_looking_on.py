"""Looking at what is read: beside debuggers, profilers and threads, and with nothing kept alive."""

import gc
import sys
import threading
import typing
import warnings
import weakref
from types import SimpleNamespace
from typing import Any, Union

import pytest
import torch

from tests.contract.models import Function
from torchgraph.errors import AttributeWriteWarning
from torchgraph.testing import counters


def calls(graph, build, count):
    for _ in range(count):
        x = torch.randn(4)
        assert torch.equal(graph(x), build(x))


def test_who_profiles_or_traces_does_so_still():
    held, seen = SimpleNamespace(beta=0.5), []

    def build(x):
        return x * held.beta

    def profile(frame, event, arg):
        seen.append(event)

    def trace(frame, event, arg):
        seen.append(event)

    for get, put, ours in (
        (sys.getprofile, sys.setprofile, profile),
        (sys.gettrace, sys.settrace, trace),
    ):
        graph, before = Function(build), get()
        held.beta = 0.5
        put(ours)
        try:
            graph(torch.randn(4))
            assert get() is ours
        finally:
            put(before)
        assert seen
        calls(graph, build, 3)
        held.beta = 0.75
        calls(graph, build, 3)


def test_beside_a_debugger_names_are_guarded():
    held = SimpleNamespace(beta=0.5, inner={"w": 2.0}, terms=[SimpleNamespace(v=1.0)])

    def helper(x, options):
        return x * options["w"]

    def build(x):
        for term in held.terms:
            x = x * term.v
        return helper(x, held.inner) * held.beta

    before = sys.gettrace()
    for change in (
        lambda: setattr(held, "beta", 0.75),
        lambda: held.inner.update(w=3.0),
        lambda: setattr(held.terms[0], "v", 3.0),
    ):
        sys.settrace(lambda frame, event, arg: None)
        try:
            graph = Function(build)
            calls(graph, build, 4)
            change()
            calls(graph, build, 4)
        finally:
            sys.settrace(before)


def test_a_debugger_that_comes_in_build_stays():
    def build(x):
        sys.settrace(stay)
        return x * 2

    def stay(frame, event, arg):
        return None

    before = sys.gettrace()
    try:
        Function(build)(torch.randn(4))
        assert sys.gettrace() is stay
    finally:
        sys.settrace(before)


def test_nothing_is_looked_at_after_a_call_that_raises():
    def build(x):
        raise KeyError("mine")

    before = sys.gettrace()
    with pytest.raises(KeyError, match="mine"):
        Function(build)(torch.randn(4))
    assert sys.gettrace() is before


def test_other_threads_are_not_looked_at():
    held = SimpleNamespace(beta=0.5, noise=0)
    stop, started = threading.Event(), threading.Event()

    def other():
        while not stop.is_set():
            held.noise = held.noise + 1
            started.set()

    def build(x):
        return x * held.beta

    thread = threading.Thread(target=other)
    thread.start()
    try:
        started.wait()
        graph = Function(build)
        with counters.expect(captures=1, replays=4):
            calls(graph, build, 6)
    finally:
        stop.set()
        thread.join()


class Batch:
    """What a step makes and forgets."""

    def __init__(self, x):
        self.x = x
        self.scale = 2.0


@pytest.mark.usefixtures("small_heap")
def test_what_a_step_makes_dies():
    made = []

    def helper(batch):
        return batch.x * batch.scale

    def options(**values: Any):
        made.append(weakref.ref(values["batch"].x))
        return values["batch"].x * values["scale"]

    def build(x):
        batch = Batch(x + 1)
        made.append(weakref.ref(batch))
        made.append(weakref.ref(batch.x))
        listed = [Batch(x), 2.0]
        made.append(weakref.ref(listed[0]))
        return helper(batch) * listed[1] + options(batch=batch, scale=3.0)

    graph = Function(build)
    warnings.simplefilter("ignore", AttributeWriteWarning)  # of `made`
    for number in range(5):
        x = torch.randn(4)
        made.append(weakref.ref(x))
        graph(x)
        del x
        gc.collect()
        assert [ref() for ref in made] == [None] * len(made), number


@pytest.mark.usefixtures("small_heap")
def test_a_batch_that_a_global_name_leads_to_dies():
    held = SimpleNamespace(x=None)

    def build(x):
        return held.x * 2

    graph = Function(build)
    for _ in range(5):
        held.x = torch.randn(4)
        ref = weakref.ref(held.x)
        assert torch.equal(graph(held.x), held.x * 2)
        held.x = None
        gc.collect()
        assert ref() is None


def test_a_type_that_is_made_in_a_step_is_no_reading():
    """Before Python 3.13 typing_extensions puts functions of its own into Python's typing."""

    def build(x):
        kind = Union[torch.Tensor, tuple[torch.Tensor]]  # noqa: UP007  # made when the line runs
        return x * 2 if kind else x

    for forget in typing._cleanups:
        forget()  # types that were made before are not made again
    graph = Function(build)
    calls(graph, build, 4)

    assert "f_globals" not in str(graph.report())
    assert graph.report().calls.recorded == 2
