"""All that one does to a float or an int in an optimizer's step, while a scheduler moves it."""

from __future__ import annotations

import array
import cmath
import copy
import ctypes
import decimal
import fractions
import functools
import io
import itertools
import json
import logging
import math
import operator
import pickle
import random
import statistics
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from torchgraph import Graph
from torchgraph.record.tape.number import Integer, Number

pytestmark = pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")

one = functools.partial(torch.ones, (), dtype=torch.float64)
log = logging.getLogger(__name__)

STILL_MOVES = """
x if x else 2.0 | x if w else 2.0 | (w or 0.7) | bool(w) + 1 | (x < 9) + 1 | (0 < x <= n) + 1
x == x and 2.0 | not x or 2.0 | -x | +x | abs(-x) | x // 0.03 | n // 2 | n % 3 | 5 % n | 1.0 % x
divmod(x, 0.03)[1] | divmod(7, n)[0] | divmod(n, 3)[1] | x ** 2 | x ** 0.5 | 2 ** n | n ** -1
min(x, 0.05) | max(x, 0.05, 0.01) | sum([x, n, 1.0]) | sorted([9.0, x])[0] | math.sqrt(x)
math.pow(x, n) | math.prod([x, n, 2.0]) | sum({'a': [x]}['a']) | math.isnan(x) + 1
math.isfinite(x) + 1 | math.isinf(x) + 1 | x.real | x.imag + 1 | n.numerator
isinstance(x, float) + 1 | isinstance(n, int) + 1 | (type(x) is float) + 1 | type(n) in (int,)
statistics.median([x, 9.0, 0.0]) | copy.copy(x) | copy.deepcopy(x)
functools.reduce(operator.mul, [x, n, 2.0]) | operator.neg(x) | list(map(abs, [x]))[0]
Pair(x, n)._replace(right=3).left | {**{'lr': x}}['lr'] | torch.tensor(x) | torch.full((), x)
torch.tensor(n) | one() * x | x * one() | one() / n | one() - x | x - one() | one() ** x
one().mul_(x) | torch.addcdiv(one(), one(), one(), value=x) | one().add_(one(), alpha=-x)
one().lerp(2 * one(), x) | one().clamp(max=x) | torch.where(one() > x, 1.0, 2.0) | x < one()
torch._foreach_mul([one()], x)[0]
"""
"""What a program follows."""

GOES_BY_VALUE = """
float(f"{x:.3f}") | float("%.4f" % x) | float(str(x)) | float(repr(x)) | len(f"{n:04d} {x=}")
int(f"{n:x}", 16) | int(x * 100) | float(x) | int(n) | round(x, 2) | math.exp(-x)
math.cos(n) | round(n, -1) | math.floor(9 * x)
math.ceil(9 * x) | math.trunc(9 * x) | math.copysign(1, x) | math.log1p(x) | math.hypot(x, n)
math.fsum([x, 1.0]) | math.fmod(n, 3) | math.gcd(n, 4) | math.isqrt(n) | math.comb(9, n)
math.log(x) | math.frexp(x)[0] | math.isclose(x, 0.1) | hash(x) % 17
{n: 0.5}[n] | {1: 2}.get(n, 3)
(n in [2, 4]) + 1 | (n in {2, 4}) + 1 | (n in range(2, 5)) + 1 | x.is_integer() + 1 | x.conjugate()
x.as_integer_ratio()[0] % 97 | len(x.hex()) | n.bit_length() | n.to_bytes(2, "big")[1]
~n | n & 3 | n | 4 | 5 ^ n | n << 1 | 8 >> n | complex(x).real
abs(1j * x) | abs(cmath.exp(1j * n))
sum(range(n)) | "abcdefghijk".index("abcdefghijk"[n]) | len(list(range(20))[::n]) | len("ab" * n)
len(list(itertools.islice(range(20), n))) | random.Random(n).random() | bytes(n).count(0)
float(np.sqrt(x)) | float(np.float32(x)) | float(np.clip(x, 0, 9)) | float((np.ones(2) * x).sum())
float(np.interp(n, [1, 9], [0, 1])) | np.arange(20)[n] | float(np.float64(2) * x) | fraction(n)
struct.unpack("f", struct.pack("f", x))[0] | array.array("d", [x])[0] | ctypes.c_float(x).value
pickle.loads(pickle.dumps({'lr': x}))['lr'] | copy.deepcopy({'a': [x]})['a'][0]
statistics.fmean([x, 1.0]) | logged(x) | matched(n)
torch.ones(10).narrow(0, 0, n).sum() | torch.ones(10)[:n].sum() | torch.ones(3).roll(n)[0]
"""
"""What a program holds for one value of."""

LEFT_TO_EAGER = """
json.loads(json.dumps({'lr': x}))['lr'] | float(decimal.Decimal(x)) | statistics.mean([x, 1.0])
deque(range(9), maxlen=n)[0] | float.hex(x) and 2.0 | pow(n, 2, 5) | float.__mul__(x, 2.0)
"""
"""C code that takes Python's own numbers alone."""


class Pair(NamedTuple):
    left: float
    right: float


def fraction(n: int) -> float:
    return float(fractions.Fraction(n, 7) * fractions.Fraction(1, 3) * n)


def logged(x: float) -> float:
    log.info("lr %.4f, %s", x, x)
    print("lr", x, file=io.StringIO())
    return x


def matched(n: int) -> float:
    match n:
        case 1 | 2:
            return 1.0
        case int(found) if found > 3:
            return found
        case _:
            return 3.0


_MODULES = (array, cmath, copy, ctypes, decimal, fractions, functools, itertools, json, math)
_MODULES += (operator, pickle, random, statistics, struct, torch)
WORLD = {module.__name__: module for module in _MODULES}
WORLD |= {"np": np, "one": one, "deque": deque, "Pair": Pair}
WORLD |= {"fraction": fraction, "logged": logged, "matched": matched}
"""What the words may name."""

Word = Callable[[Any, Any, Any], Any]


def words(text: str) -> list[Word]:
    """``n | 4`` is one word: the others have no ``|`` of their own."""
    found = [part for line in text.strip().splitlines() for part in line.split(" | ")]
    if "n" in found and "4" in found:
        found = [part for part in found if part not in ("n", "4")] + ["n | 4"]
    return [eval(f"lambda x, n, w: {word}", dict(WORLD)) for word in found]


class Says(torch.optim.Optimizer):
    """Each word's value goes into a parameter of its own."""

    def __init__(self, parameters: Any, words: Sequence[Word], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": 0.0})
        self.words = words

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (group,) = self.param_groups
        state = self.state["all"]
        state["n"] = state.get("n", 0) + 1
        for parameter, word in zip(group["params"], self.words, strict=True):
            value = word(group["lr"], state["n"], group["weight_decay"])
            parameter.add_(parameter.grad * value)


def trained(
    words: Sequence[Word],
    *,
    graph: bool,
    rate: Callable[[int], float] = lambda call: 0.8**call,
    own: bool = False,
    calls: int = 8,
    kind: type[Says] = Says,
) -> tuple[list[torch.Tensor], Any]:
    """The parameters after each call. ``own``: `build` steps the optimizer and the scheduler."""
    module = nn.ParameterList(nn.Parameter(0.25 * one()) for _ in words)
    optimizer = kind(module.parameters(), words, 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def step() -> torch.Tensor:
        loss = torch.stack(list(module)).sum()
        loss.backward()
        if own or not graph:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        return loss

    class Training(Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.config.set_backend("aten")
            if not own:
                self.add_optimizer(optimizer, lr_sch=scheduler)

        def build(self) -> torch.Tensor:
            return step()

    run = Training() if graph else step
    found = []
    for _ in range(calls):
        run()
        found.append(torch.stack(list(module)).detach())
    return found, run


def steady(call: int) -> float:
    return 1.0


def assert_equal(graph: list[torch.Tensor], eager: list[torch.Tensor]) -> None:
    for call, (one, other) in enumerate(zip(graph, eager, strict=True)):
        assert torch.equal(one, other), f"call {call}: {(one != other).nonzero().tolist()}"


@pytest.mark.parametrize("own", [False, True])
def test_what_computes_goes_on_moving_in_the_program(own):
    found = words(STILL_MOVES)
    graph, run = trained(found, graph=True, own=own)
    assert_equal(graph, trained(found, graph=False)[0])
    assert run.report().calls.programs >= 4


@pytest.mark.parametrize("own", [False, True])
def test_what_asks_for_the_value_has_the_one_of_this_call(own):
    found = words(GOES_BY_VALUE)
    graph, _ = trained(found, graph=True, own=own, calls=4)
    assert_equal(graph, trained(found, graph=False, calls=4)[0])


def test_a_program_serves_as_long_as_the_value_stays():
    found = [word for word in words(GOES_BY_VALUE) if "n" not in word.__code__.co_names]
    found = [lambda x, n, w, word=word: word(x, 3, w) for word in found]
    graph, run = trained(found, graph=True, rate=steady)
    assert_equal(graph, trained(found, graph=False, rate=steady)[0])
    assert run.report().calls.programs >= 4


@pytest.mark.parametrize("number", range(len(words(LEFT_TO_EAGER))))
def test_what_takes_pythons_own_numbers_alone_runs_in_eager(number):
    found = [words(LEFT_TO_EAGER)[number]]
    graph, run = trained(found, graph=True, calls=4)
    assert_equal(graph, trained(found, graph=False, calls=4)[0])
    assert "hands a number to code that takes no moving one" in run.report().calls.eager[0].why


@pytest.mark.parametrize(("moving", "kind"), [(Number, float), (Integer, int)])
def test_whatever_pythons_own_number_has_a_moving_one_has_too(moving, kind):
    mine = {name for cls in moving.__mro__[:2] for name in vars(cls)}
    never = {"__new__", "__getattribute__", "__init_subclass__", "__subclasshook__", "__sizeof__"}
    own = {name for name in dir(kind) if getattr(kind, name) != getattr(object, name, None)}
    assert own - mine - never - {"__getnewargs__"} == set()


SEEN: list[int] = []


class Counted(torch.optim.Optimizer):
    """Counts its steps in a list that is not its own."""

    def __init__(self, parameters, use):
        super().__init__(parameters, {"n": 3})
        self.use = use

    @torch.no_grad()
    def step(self, closure=None):
        SEEN.append(1)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.1 * self.use(group["n"]))


def refuses(number):
    raise ValueError("the user's own")


def test_a_step_that_raises_has_changed_what_is_not_its_own_once():
    SEEN.clear()
    model = torch.nn.Linear(2, 2)
    optimizer = Counted(model.parameters(), refuses)

    @tg.step
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the user's own"):
        step(torch.ones(2, 2))
    assert len(SEEN) == 1
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert optimizer.param_groups[0]["n"] == 3
