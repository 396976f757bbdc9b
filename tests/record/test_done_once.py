"""A step that is made again with plain numbers: what it meets outside is met once, as in eager."""

import collections
import contextlib
import io
import itertools
import random
import warnings

import numpy as np
import pytest
import torch

import torchgraph as tg
from tests.cases.plays import descent

CALLS = 6


def rejected(number):
    return len(collections.deque(range(9), maxlen=number))


class World:
    """What a step meets that is not its own."""

    def __init__(self, folder):
        self.numbers, self.generator = iter(range(1, 999)), (n for n in itertools.count(1))
        self.pairs, self.count = zip(range(1, 999), range(999), strict=False), itertools.count()
        self.stack, self.seen = list(range(99)), []
        self.random, self.numpy = random.Random(0), np.random.default_rng(0)
        self.torch = torch.Generator().manual_seed(0)
        self.n, self.table = 0, {"n": [0]}
        (folder / "read").write_text("\n".join(map(str, range(1, 999))))
        self.file, self.out = (folder / "read").open(), io.StringIO()

    def left(self):
        lines = len(self.file.readlines())
        self.file.close()
        rest = lines, len(self.stack), self.seen, self.n, self.table
        drawn = self.random.random(), self.numpy.random(), torch.rand((), generator=self.torch)
        return next(self.numbers), rest, self.out.getvalue(), *map(float, drawn)


WORLD: World


def taken():
    return next(WORLD.numbers)


def looped():
    for number in WORLD.numbers:  # noqa: B007
        break
    return number


def sent():
    return WORLD.generator.send(None)


def paired():
    first, _ = next(WORLD.pairs)
    return first


def counted():
    WORLD.seen.append(next(WORLD.count))
    return len(WORLD.seen)


def read():
    return int(WORLD.file.readline())


def popped():
    return WORLD.stack.pop()


def deleted():
    del WORLD.stack[0]
    WORLD.seen += [1]
    return WORLD.stack[0]


def assigned():
    WORLD.n += 1
    WORLD.table["n"][0] += 1
    return WORLD.n + WORLD.table["n"][0]


def drawn():
    return WORLD.random.random()


def drawn_by_numpy():
    return float(WORLD.numpy.random())


def printed():
    print("a line")  # noqa: T201
    print("another", file=WORLD.out, end="")
    return 1


UNDONE = [taken, looped, sent, paired, counted, read, popped, deleted, assigned]
UNDONE += [drawn, drawn_by_numpy, printed]


class Meeting(torch.optim.Optimizer):
    """An optimizer that meets something, and then hands a number to code that rejects it."""

    def __init__(self, parameters, use):
        super().__init__(parameters, {"lr": 0.1, "n": 3})
        self.use = use

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-0.01 * group["lr"] * (self.use() + rejected(group["n"])))


def with_an_optimizer(use):
    model = torch.nn.Linear(2, 2)
    own = type("Own", (Meeting,), {})  # what one class is known for says nothing of another
    return model, descent(model, own(model.parameters(), use))


class Held:
    n = 3


def with_a_number_of_its_own(use):
    model, held = torch.nn.Linear(2, 2), Held()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step(x):
        held.n += 1
        optimizer.zero_grad()
        loss = model(x).sum() * use() * held.n
        loss.backward()
        optimizer.step()
        return loss * rejected(held.n)

    return model, step


def run(make, use, folder, *, graph):
    global WORLD
    folder.mkdir()
    WORLD = World(folder)
    torch.manual_seed(0)
    model, step = make(use)
    if graph:
        step = tg.step(step)
        step.config.set_backend("aten")
    losses = []
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), warnings.catch_warnings():
        warnings.simplefilter("ignore", tg.errors.EagerWarning)
        warnings.simplefilter("ignore", tg.errors.NotRepeatedWarning)
        for _ in range(CALLS):
            losses.append(step(torch.ones(3, 2)).item())
    left = losses, [p.tolist() for p in model.parameters()], shown.getvalue(), WORLD.left()
    return step, left


MAKES = [with_an_optimizer, with_a_number_of_its_own]


@pytest.mark.parametrize("use", UNDONE)
@pytest.mark.parametrize("make", MAKES)
def test_as_in_eager(make, use, tmp_path):
    _, eager = run(make, use, tmp_path / "eager", graph=False)
    step, found = run(make, use, tmp_path / "graph", graph=True)
    assert found == eager
    assert step.report().calls.eager


def test_a_step_that_prints_keeps_its_program(tmp_path):
    """Where nothing rejects a number: what is held back comes in its order."""

    class Printing(Meeting):
        @torch.no_grad()
        def step(self, closure=None):
            print("one")  # noqa: T201
            print("two")  # noqa: T201
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])

    def make(use):
        model = torch.nn.Linear(2, 2)
        return model, descent(model, Printing(model.parameters(), use))

    step, found = run(make, None, tmp_path / "graph", graph=True)
    assert step.report().calls.programs
    assert found[2].startswith("one\ntwo\n")


def test_the_grad_mode_is_put_back(tmp_path):
    class Switching(Meeting):
        def step(self, closure=None):
            before = torch.is_grad_enabled()
            torch.set_grad_enabled(False)
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-0.01 * rejected(group["n"]))
            torch.set_grad_enabled(before)

    def make(use):
        model = torch.nn.Linear(2, 2)
        return model, descent(model, Switching(model.parameters(), use))

    _, eager = run(make, None, tmp_path / "eager", graph=False)
    _, found = run(make, None, tmp_path / "graph", graph=True)
    assert found == eager
    assert torch.is_grad_enabled()
