"""Loops that ask the process: what lies in it changes between calls, or the step moves it.

A case makes a step, and what the loop does before the call of a number. Programs serve it, and a
change is noticed; or it is in eager for a reason that names what it is, or a warning says it.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution

import torchgraph as tg
from torchgraph.errors import GraphWarning

CHANGES = 5
"""The call before which something changes."""
Step = Callable[..., Any]


class Case(NamedTuple):
    """One loop."""

    make: Callable[[Path], tuple[Step, Callable[[], object]]]
    eager: str
    said: str


CASES: dict[str, Case] = {}


def case(eager: str = "", said: str = "") -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        CASES[make.__name__] = Case(make, eager, said)
        return make

    return add


def nothing() -> None:
    """The loop changes nothing."""


def trained() -> Callable[[torch.Tensor, Any], torch.Tensor]:
    """One step of a small model, its loss times a number."""
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def train(x: torch.Tensor, weight: Any) -> torch.Tensor:
        opt.zero_grad()
        loss = net(x).pow(2).mean() * weight
        loss.backward()
        opt.step()
        return loss.detach()

    return train


def weighs(weight: Callable[[], Any], change: Callable[[], object] = nothing) -> Any:
    """A step whose loss is weighed by what it asks."""
    train = trained()

    def step(x: torch.Tensor) -> torch.Tensor:
        return train(x, weight())

    return step, change


def does(act: Callable[[], object], change: Callable[[], object] = nothing) -> Any:
    """A step that does something besides."""
    train = trained()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = train(x, 1.0)
        act()
        return loss

    return step, change


@contextmanager
def as_it_was() -> Iterator[None]:
    """The settings of the process are put back."""
    there, variables = os.getcwd(), dict(os.environ)
    validates = Distribution._validate_args
    random_states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        os.chdir(there)
        os.environ.clear()
        os.environ.update(variables)
        Distribution.set_default_validate_args(validates)
        random.setstate(random_states[0])
        np.random.set_state(random_states[1])
        torch.set_rng_state(random_states[2])
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()
        vars(nn.LayerNorm).get("scaled") and delattr(nn.LayerNorm, "scaled")
        torch.backends.cudnn.benchmark = False
        sys.setrecursionlimit(LIMIT)


LIMIT = sys.getrecursionlimit()


def result_of(name: str, path: Path, *, graph: bool) -> tuple[list[object], list[str], Any]:
    """(the losses of eight calls, the warnings, the report) of one run of a case."""
    path.mkdir()
    with as_it_was(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        random.seed(0)
        step, change = CASES[name].make(path)
        called = tg.step(step) if graph else step
        if graph:
            called.config.set_backend("aten")
            called.config.set_fallback("eager")
        found: list[object] = []
        opened = getattr(step, "opened", StringIO())
        for number in range(8):
            getattr(step, "before", nothing)()
            if number == CHANGES:
                change()
            x = torch.full((4, 3), 1.0 + number % 3)
            found.append(called(getattr(step, "given", lambda _, x: x)(number, x)).item())
        opened.close()
    said = [str(one.message) for one in caught if issubclass(one.category, GraphWarning)]
    return found, said, called.report().calls if graph else None


# --- generators -----------------------------------------------------------------------------------


def rare(draw: Callable[[], float]) -> Callable[[], float]:
    """A branch that hardly ever goes the other way."""
    return lambda: 2.0 if draw() > 0.9 else 1.0


@case(eager="draws from a Generator of its own")
def numpys_generator_in_a_list_in_a_dict(path):
    held = {"a": [np.random.default_rng(40)]}
    return weighs(rare(lambda: held["a"][0].random()))


@case(eager="draws from a RandomState of its own")
def numpys_older_generator(path):
    state = np.random.RandomState(3)
    return weighs(rare(lambda: state.rand()))


@case(eager="draws from a Random of its own")
def pythons_generator(path):
    own = random.Random(3)
    return weighs(rare(lambda: own.random()))


@case(eager="draws from a Random of its own")
def a_partial_of_a_draw(path):
    draw = functools.partial(functools.partial(random.Random(3).random))
    return weighs(rare(lambda: draw()))


@case(eager="draws from a Generator of its own")
def an_iterator_of_draws(path):
    draws = iter(np.random.default_rng(40).random, None)
    return weighs(rare(lambda: next(draws)))


@case(eager="draws from a Random of its own")
def a_draw_that_c_calls(path):
    draw = random.Random(3).random
    return weighs(rare(lambda: max(itertools.starmap(draw, [()]))))


@case(eager="draws from a Random of its own")
def a_methodcaller_of_a_draw(path):
    own, call = random.Random(3), operator.methodcaller("random")
    return weighs(rare(lambda: call(own)))


@case(eager="draws from a Random of its own")
def a_default_that_draws(path):
    held = defaultdict(random.Random(3).random)
    return weighs(rare(lambda: held.pop(1, 0) + held[1]))


@case(eager="draws from Python's random")
def pythons_own_generator(path):
    return weighs(rare(lambda: random.random()))


@case(eager="seeds torch")
def a_seed_that_moves_nothing(path):
    torch.manual_seed(7)
    return does(lambda: torch.manual_seed(7))


@case(eager="draws from a Generator of its own")
def a_generator_that_is_seeded_anew(path):
    own = torch.Generator().manual_seed(3)
    return does(lambda: own.manual_seed(own.initial_seed() + 1))


@case()
def the_seed_of_a_generator(path):
    own = torch.Generator().manual_seed(3)
    return weighs(lambda: float(own.initial_seed()), lambda: own.manual_seed(7))


@case()
def the_seed_of_torch(path):
    torch.manual_seed(3)
    return weighs(lambda: float(torch.initial_seed()), lambda: torch.manual_seed(5))


# --- the process ----------------------------------------------------------------------------------


@case()
def a_variable_by_getenv(path):
    os.environ["WEIGHT"] = "1"
    return weighs(lambda: float(os.getenv("WEIGHT", "3")), lambda: os.environ.pop("WEIGHT"))


@case()
def a_variable_that_may_be_there(path):
    os.environ.pop("WEIGHT", None)
    return weighs(
        lambda: 2.0 if "WEIGHT" in os.environ else 1.0,
        lambda: os.environ.__setitem__("WEIGHT", "2"),
    )


@case(eager="leaves the variable CALLS of the environment otherwise")
def a_variable_that_counts(path):
    os.environ["CALLS"] = "0"
    return does(lambda: os.environ.__setitem__("CALLS", str(int(os.environ["CALLS"]) + 1)))


@case()
def the_working_directory(path):
    (path / "below").mkdir()
    os.chdir(path)
    return weighs(lambda: float(len(os.getcwd())), lambda: os.chdir(path / "below"))


@case()
def the_limit_of_recursion(path):
    return weighs(
        lambda: float(sys.getrecursionlimit() % 7), lambda: sys.setrecursionlimit(LIMIT + 1)
    )


VARIABLE: ContextVar[Any] = ContextVar("VARIABLE", default=1.0)


@case()
def a_context_variable(path):
    VARIABLE.set(1.0)
    return weighs(lambda: VARIABLE.get(), lambda: VARIABLE.set(2.0))


@case()
def a_tensor_in_a_context_variable(path):
    VARIABLE.set(torch.ones(()))
    return weighs(lambda: VARIABLE.get(), lambda: VARIABLE.set(torch.full((), 2.0)))


@case()
def a_context_variable_that_is_set_back(path):
    def weight():
        token = VARIABLE.set(5.0)
        found = VARIABLE.get()
        VARIABLE.reset(token)
        return found

    VARIABLE.set(1.0)
    return weighs(weight)


@case(eager="leaves the context variable VARIABLE otherwise")
def a_context_variable_that_counts(path):
    VARIABLE.set(0)
    return does(lambda: VARIABLE.set(VARIABLE.get() + 1))
