"""Numbers in the user's own places, which the step moves: inputs and outputs of the program."""

from __future__ import annotations

import collections
import copy
import decimal
import json
import math
import pickle
from collections.abc import Callable, Mapping
from math import cos, pi
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.cases.plays import Play
from tests.cases.table import Table

case = Table(fallback="eager")
Body = Callable[["Trainer", torch.Tensor], Any]


class Trainer:
    """A model, its optimizer, and what else the loop moves."""

    def __init__(self, optimizer: Any = torch.optim.SGD, **start: Any) -> None:
        self.net = nn.Linear(6, 6)
        self.optimizer = optimizer(self.net.parameters(), 0.01)
        vars(self).update(copy.deepcopy(start))

    def train(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).square().mean() * scale
        loss.backward()
        self.optimizer.step()
        return loss


def batches(number: int) -> list[tuple[torch.Tensor]]:
    return [(torch.full((4, 6), n % 3 + 1.0),) for n in range(number)]


def moves(number: int = 14, optimizer: Any = torch.optim.SGD, **start: Any) -> Any:
    """Decorator of the body of a loop over a `Trainer` that begins with these numbers."""

    def made(body: Body) -> Callable[[], Play]:
        def make() -> Play:
            t = Trainer(optimizer, **start)
            return Play(lambda x: body(t, x), [t], calls=batches(number))

        make.__name__ = body.__name__
        return make

    return made


def two_programs(step: Any) -> None:
    step.config.set_cache_size(2)


# --- places ---------------------------------------------------------------------------------------


@case(least=6)
def closure():
    t, n = Trainer(), 0

    def step(x):
        nonlocal n
        n += 1
        return t.train(x) * (n * 0.5)

    return Play(step, [t, lambda: n], calls=batches(14))


CALLS = 0


@case(least=6)
def in_a_global():
    global CALLS
    t, CALLS = Trainer(), 0

    def step(x):
        global CALLS
        CALLS += 1
        return t.train(x) * CALLS

    return Play(step, [t, lambda: CALLS], calls=batches(14))


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


@case(least=6)
@moves(slot=Slotted(), state={"train": {"step": 0, "loss": 0.0}}, items=[0, 1.0, 2])
def in_a_slot_a_dict_and_a_list(t, x):
    held = t.state["train"]
    held["step"] += 1
    loss = t.train(x)
    held["loss"] += loss.item()
    t.slot.n += 1
    t.items[0] += 1
    t.items[1] *= 0.9
    t.items[2] += 2
    return loss * t.slot.n + held["step"] + sum(t.items)


@case(least=6)
def in_a_module():
    class Counts(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * (1 + 1 / self.calls)

    t = Trainer()
    t.net.__class__ = Counts
    return Play(t.train, [t, lambda: t.net.calls], calls=batches(14))


class AverageMeter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.val: Any = 0
        self.avg: Any = 0
        self.sum: Any = 0
        self.count = 0

    def update(self, val: Any, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


@case(least=6)
@moves(meters=collections.defaultdict(AverageMeter), seen=collections.Counter())
def meters_by_name(t, x):
    loss = t.train(x)
    for name, value in {"loss": loss, "twice": loss * 2}.items():
        t.meters[name].update(value.item(), len(x))
        t.seen[name] += 1
    return loss


@case(least=6, slow=True)
@moves(sums={"a": 0.0, "b": 1.0})
def sums_over_items(t, x):
    loss = t.train(x)
    for name, value in t.sums.items():
        t.sums[name] = value * 0.9 + loss.item()
    return loss


# --- what is computed -----------------------------------------------------------------------------


@case(least=6)
@moves(n=0, avg=0.0)
def moving_average(t, x):
    loss = t.train(x)
    t.n += 1
    t.avg = 0.9 * t.avg + (1 - 0.9) * float(loss.detach())
    return loss - t.avg / (1 - 0.9**t.n)


@case(least=6, slow=True)
@moves(n=0, avg=0.0)
def rounded(t, x):
    loss = t.train(x)
    t.avg = round(float(t.avg) * 0.5 + loss.item(), 4)
    t.n = int(t.n * 1.5) + 1
    return loss


@case(least=6)
@moves(n=0)
def cosine(t, x):
    t.n += 1
    group = t.optimizer.param_groups[0]
    group["lr"] = 0.05 * (1 + math.cos(math.pi * t.n / 100)) + 0.001 * cos(pi / t.n)
    return t.train(x)


@case(least=6)
@moves(n=0, optimizer=torch.optim.Adam)
def betas(t, x):
    t.n += 1
    group = t.optimizer.param_groups[0]
    group["betas"] = (min(0.95, 0.5 + 0.01 * t.n), group["betas"][1])
    return t.train(x)


@case(least=6)
@moves(avg=math.nan, best=math.inf, n=2**62)
def odd_floats(t, x):
    t.avg, t.best, t.n = t.avg + 1, -t.best, t.n * 2 + (t.n & 1)
    return t.train(x) * (t.n % 7)


@case(least=6)
@moves(n=0, history=[])
def returned_and_appended(t, x):
    loss = t.train(x)
    t.n += 1
    t.history.append(loss.item())
    return {"loss": loss, "item": loss.item(), "step": t.n, "half": t.n / 2}


# --- ways that Python goes ------------------------------------------------------------------------


@case(least=6, slow=True)
@moves(best=math.inf)
def best_so_far(t, x):
    loss = t.train(x)
    t.best = min(t.best, loss.item())
    return loss


@case(least=6)
@moves(n=0, best=math.inf, kept={})
def best_by_a_branch(t, x):
    loss = t.train(x)
    if loss.item() < t.best:
        t.best = loss.item()
        t.kept["weight"] = t.net.weight.detach().clone()
    else:
        t.n += 1
    return loss


@case(least=6, slow=True)
@moves(n=0, avg=0.0)
def starts_again(t, x):
    loss = t.train(x)
    t.avg += loss.item()
    t.n += 1
    if t.n == 5:
        t.n, t.avg = 0, 0.0
    return loss


@case(least=6)
@moves(n=0, milestones=[3, 7, 11])
def milestones_in_a_list(t, x):
    t.n += 1
    if t.n in t.milestones:
        t.optimizer.param_groups[0]["lr"] *= 0.5
    return t.train(x)


@case(least=6)
@moves(state={})
def an_epoch_beside_its_counter(t, x):
    t.state["n"] = t.state.get("n", 0) + 1
    t.state["epoch"] = t.state["n"] // 4  # that stays while the first calls are recorded
    return t.train(x, 1 / (1 + t.state["epoch"]))


@case(least=34)
@moves(number=40, n=0, avg=0.0)
def a_branch_at_step_25_of_40(t, x):
    t.n += 1
    loss = t.train(x, 0.5 if t.n > 25 else 1.0)
    t.avg = 0.99 * t.avg + 0.01 * loss.item()
    return loss


@case(least=6)
@moves(number=20, window=collections.deque([9.0] * 3, 3), sums={0: 0.0, 1: 0.0})
def a_number_that_is_moved_in_a_container_of_numbers_is_followed(t, x):
    """Containers in which the step has read and moved numbers are looked through."""
    loss = t.train(x)
    value = loss.item()
    t.optimizer.param_groups[0]["lr"] *= 0.5 if value > max(t.window) else 0.9
    t.sums[int(value > min(t.window))] += value
    t.window.append(value)
    return loss


@case(says=None)
@moves(number=20, avg=0.0, window=[])
def the_length_of_a_list_of_numbers_counts(t, x):
    """Each length has a program, or runs in eager: nobody goes on past the end of the window."""
    loss = t.train(x)
    t.window.append(loss.item())
    if len(t.window) == 4:
        t.avg = sum(t.window) / 4
        t.window.clear()
    return loss


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


def raises(made: Callable[[int, float], tuple[Any, Any]]) -> Callable[[], Play]:
    """A step that catches an error of its arithmetic, or whose root is no real number."""

    @moves(number=10, n=0, avg=0.0)
    def body(t, x):
        t.n, t.avg = made(t.n + 1, t.avg)
        return t.train(x)

    return body


case(raises(inverted), name="inverted", says=None)
others = (complex_roots, overflows, rounds)
case.rows({one.__name__: raises(one) for one in others}, says=None, slow=True)


@case(least=7)
def a_division_by_zero_is_raised_in_the_users_line():
    t = Trainer(n=10)

    def step(x):
        t.n -= 1
        return t.train(x, 10 / t.n)

    return Play(step, [t], calls=batches(12))


# --- what the loop does between calls -------------------------------------------------------------


@case(least=12)
def what_the_loop_assigns_between_calls_is_seen():
    t = Trainer(n=0, meter=AverageMeter())

    def step(x):
        t.n += 1
        loss = t.train(x, 1 / t.n)
        t.optimizer.param_groups[0]["lr"] *= 0.9
        t.meter.update(loss.item(), len(x))
        return loss

    def assign(number):
        t.n, t.optimizer.param_groups[0]["lr"] = 10 * number, 0.02

    changes: dict[int, Any] = {n: lambda n=n: assign(n) for n in (4, 14, 19)}
    changes[9] = lambda: setattr(t, "n", 2.5)  # of another type
    changes[12] = t.meter.reset
    return Play(step, [t], changes, batches(24))


@case(least=8)
def after_load_state_dict():
    t, saved = Trainer(torch.optim.Adam, n=0, avg=0.0), []

    def step(x):
        t.n += 1
        t.optimizer.param_groups[0]["lr"] = 0.01 / t.n
        loss = t.train(x)
        t.avg += loss.item()
        return loss

    def save():
        saved[:] = copy.deepcopy((t.net.state_dict(), t.optimizer.state_dict(), t.n, t.avg))

    def load():
        t.net.load_state_dict(saved[0])
        t.optimizer.load_state_dict(copy.deepcopy(saved[1]))
        t.n, t.avg = saved[2:]

    return Play(step, [t], {5: save, 9: load}, batches(16))


# --- who takes Python's own numbers alone, or asks which ones it got ------------------------------


def caught(n):
    try:
        return json.dumps({"n": n})
    except TypeError:
        return "no number"


def arrays(n):
    kinds = (np.ones(2, np.float32) * n, np.float32(2) * n, np.array([n, 1]))
    return [str(one.dtype) for one in kinds]


TAKEN: Mapping[str, Callable[[Any], Any]] = {
    "json": lambda n: json.dumps({"n": n}),
    "caught": caught,
    "keys": lambda n: ({n: 1}, n in {3, 5}),
}
TAKEN_TOO: Mapping[str, Callable[[Any], Any]] = {
    "arrays": arrays,
    "indices": lambda n: ([7, 8, 9][n % 3], list(range(n))[:2]),
    "Decimal": decimal.Decimal,
    "pickle": pickle.dumps,
    "text": lambda n: f"{n:03d} {n} {n!r}",
    "type": lambda n: type(n).__name__,
}


def takes(taken: Callable[[Any], Any]) -> Callable[[], Play]:
    """A step that gives its number to such code: the call may be made again, with a plain one."""

    @moves(number=6, n=0, found=[])
    def body(t, x):
        t.n += 1
        t.found.append(taken(t.n))
        return t.train(x)

    return body


some = {"says": None, "configure": two_programs}
case.rows({name: takes(taken) for name, taken in TAKEN.items()}, **some)
case.rows({name: takes(taken) for name, taken in TAKEN_TOO.items()}, slow=True, **some)


class Sums(NamedTuple):
    n: int
    total: float


told = r"an index or a key was \d+ and is \d+ .*# here"


@case(says=told, configure=two_programs)
@moves(number=8, n=0, found={})
def a_number_as_an_index_or_a_key_is_told_so(t, x):
    t.n += 1
    t.found[t.n] = 1.0  # here
    return t.train(x)


@case(says=r"decides.*# here", configure=two_programs)
@moves(number=6, held=[Sums(0, 0.0)])
def numbers_in_a_tuple_with_names_stay_in_eager_with_their_line(t, x):
    loss = t.train(x)
    t.held[0] = Sums(t.held[0].n + 1, t.held[0].total + loss.item())  # here
    return loss


@case(says=r"sum> takes \d values where it took \d .*# here")
@moves(number=6, window=[])
def a_list_of_numbers_that_grows_is_told_so(t, x):
    loss = t.train(x)
    t.window.append(loss.item())
    return sum(t.window)  # here


@case(says=r"takes Python's own alone.*JSON.*# here")
@moves(number=4, n=0, seen=[])
def a_call_that_is_made_again_leaves_nothing_behind(t, x):
    t.n += 1
    loss = t.train(x)
    t.seen.append(json.dumps(t.n))  # here
    return loss


@pytest.mark.parametrize("case", case)
def test_numbers(case):
    case.check()


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_micro_batches_move_a_number_each():
    class Counts(tg.Graph):
        def __init__(self):
            super().__init__()
            self.model, self.calls = nn.Linear(6, 6), 0
            self.add_optimizer(torch.optim.SGD(self.model.parameters(), 0.01))
            self.config.set_gradient_accumulation_steps(2)

        def build(self, x):
            self.calls += 1
            loss = self.model(x).square().mean() * self.calls
            loss.backward()
            return loss

    graph = Counts()
    for _ in range(6):
        graph(torch.ones(4, 6))
    assert graph.calls == 12
