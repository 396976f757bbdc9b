"""Other threads that train, draw or seed while a Graph records, confirms and replays."""

import random
import re
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

from tests.contract.models import (
    Eval,
    Function,
    Train,
    adam,
    beside_eager,
    data,
    eager,
    same,
    snapshot,
    twins,
)
from torchgraph.errors import EagerWarning, RandomStateTouched
from torchgraph.testing import counters


class Meanwhile:
    """Runs a function in another thread: each time that the step asks, and until it is done."""

    def __init__(self, function):
        self.failed = []
        self._function = function
        self._asked, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object):
        self._over = True
        self._asked.release()
        self._thread.join()

    def now(self):
        self._asked.release()
        self._done.acquire()

    def _run(self):
        while self._asked.acquire() and not self._over:
            try:
                self._function()
            except Exception as error:  # raised by the test, in its own thread
                self.failed.append(error)
            finally:
                self._done.release()


def trained(make, meanwhile, count=8):
    """A Graph beside eager, with another thread in the middle of each step; the calls replayed."""

    def build(module, batch):
        hidden = module(batch)
        meanwhile.now()
        loss = hidden.square().mean()
        loss.backward()
        return loss

    return beside_eager(build, make, batches=data(count)).replayed


def linear():
    return nn.Linear(4, 2)


def dropout():
    return nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.3))


def test_another_thread_trains():
    """Its backward passes, scaler and optimizer steps are none of the Graph's."""
    (model, optimizer), (twin, other) = twins(linear)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(module, optimizer, scaler):
        loss = scaler.scale(module(torch.ones(3, 4)).square().mean())
        loss.backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    steps = []
    with Meanwhile(lambda: steps.append(step(model, optimizer, scaler))) as meanwhile:
        assert trained(linear, meanwhile) > 0
    assert not meanwhile.failed
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in steps:
        step(twin, other, scaler)
    assert same(snapshot(model, optimizer), snapshot(twin, other))


def test_a_fused_optimizer_of_another_thread():
    def make():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        return model, adam(model, fused=True)

    (model, optimizer), (twin, other) = make(), make()
    with Meanwhile(lambda: eager(model, optimizer, torch.ones(3, 4))) as meanwhile:
        mine, mine_too = make()
        hook = mine_too.register_step_pre_hook(lambda *_: meanwhile.now())
        graph = Train(mine, mine_too)
        graph(data()[0])
        hook.remove()
    assert not meanwhile.failed
    eager(twin, other, torch.ones(3, 4))
    assert same(snapshot(model, optimizer), snapshot(twin, other))


@pytest.mark.parametrize("draw", [lambda: torch.rand(3), random.random])
def test_another_thread_draws_in_every_recorded_step(draw):
    with (
        Meanwhile(draw) as meanwhile,
        pytest.warns(EagerWarning, match="other threads that draw"),
    ):
        trained(dropout, meanwhile, count=10)
    assert not meanwhile.failed


@pytest.mark.skipif(sys.platform != "linux", reason="which threads ran is known on Linux alone")
@pytest.mark.parametrize("draw", [lambda: torch.manual_seed(1), random.random])
def test_a_thread_that_waits_draws_nothing(draw):
    """What the step itself draws or seeds is its own doing, whoever waits meanwhile."""

    def build(batch):
        draw()
        return nn.functional.dropout(batch, 0.3)

    with Meanwhile(lambda: None):
        time.sleep(0.1)  # until it waits
        with pytest.raises(RandomStateTouched):
            Function(build)(torch.ones(4))


@pytest.mark.parametrize(
    ("draw", "said"),
    [(lambda: random.random(), "random.random()"), (lambda: torch.manual_seed(1), "seeds torch")],
)
def test_a_step_that_draws_is_refused_whoever_runs_meanwhile(draw, said):
    def build(batch):
        busy.now()
        draw()
        return nn.functional.dropout(batch, 0.3)

    busy = Meanwhile(lambda: sum(range(1000)))
    with busy, pytest.raises(RandomStateTouched, match=re.escape(said)):
        Function(build)(torch.ones(4))


def test_a_thread_that_the_step_waits_for_draws():
    def build(batch):
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.rand(4)))
        thread.start()
        thread.join()
        return batch + found[0]

    with pytest.raises(RandomStateTouched, match="a thread that draws") as raised:
        Function(build)(torch.ones(4))
    assert "contextlib" not in str(raised.value)


def test_another_thread_that_draws_once_costs_one_call():
    draws = iter([False, True, False, False, False, False, False, False])
    with Meanwhile(lambda: next(draws, False) and torch.rand(3)) as meanwhile:
        (model, optimizer), _ = twins(dropout)

        def build(batch):
            hidden = model(batch)
            meanwhile.now()
            loss = model(hidden @ torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        graph = Function(build, optimizer, model=model)
        replays = counters.replays
        for batch in data(8):
            graph(batch)
    assert counters.replays - replays == 5


def test_threads_that_draw_all_the_time():
    """Whatever they hit, nothing fails, and dropout keeps its rate."""
    over = threading.Event()

    def draw():
        while not over.is_set():
            torch.rand(10)

    threads = [threading.Thread(target=draw) for _ in range(2)]
    graph = Eval(nn.Dropout(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)
        for thread in threads:
            thread.start()
        try:
            kept = [graph(torch.ones(1000)).ne(0).float().mean() for _ in range(15)]
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert 0.45 < torch.stack(kept).mean() < 0.55


def test_two_graphs_in_two_threads():
    pairs = [twins(dropout) for _ in range(2)]
    batches = data(12)
    results = [[], []]

    def run(number):
        (model, optimizer), _ = pairs[number]
        model.eval()
        graph = Train(model, optimizer)
        results[number] += [graph(batch) for batch in batches]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, got in enumerate(results):
        model, optimizer = pairs[number][1]
        model.eval()
        assert same(got, [eager(model, optimizer, batch) for batch in batches])


def test_a_program_serves_while_another_thread_records():
    """The classes that a recording patches are not taken for classes that were replaced."""
    (model, optimizer), _ = twins(linear)
    graph, begun = Train(model, optimizer), threading.Event()
    for batch in data(4):
        graph(batch)

    def build(batch):
        begun.set()
        time.sleep(0.2)  # the other call comes meanwhile
        return batch + 1

    other = threading.Thread(target=Function(build), args=(torch.ones(4),))
    other.start()
    begun.wait()
    with counters.expect(replays=1):
        graph(data(1)[0])
    other.join()


# --- torch.compile --------------------------------------------------------------------------------


def test_dynamo_waits_for_a_recording_of_another_thread():
    """It would read the classes of torch as they are patched there."""
    model, began, found = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), threading.Event(), []
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    def compiles():
        began.wait()
        found.append(compiled(torch.ones(2, 4)))

    def build(x):
        y = model(x)
        if not found:  # before this call waits, the other thread may come as far as it can
            began.set()
            time.sleep(0.3)
        return y

    other = threading.Thread(target=compiles)
    other.start()
    graph = Function(build, model=model)
    for _ in range(4):
        graph(torch.ones(2, 4))
    other.join()
    assert torch.equal(found[0], model(torch.ones(2, 4)))


FIRST = """
import threading, time, torch, torchgraph as tg

began, found = threading.Event(), []
left, right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

def step(x):
    y = left(x)
    began.set()
    time.sleep(0.3)
    return y

def chosen(x):
    return torch.cond(x.sum() > 0, lambda t: right(t).sin(), lambda t: right(t).cos(), (x,))

def meanwhile():
    began.wait()
    function = tg.step(chosen) if {steps} else chosen
    found.extend(function(torch.ones(2, 4)) for _ in range(3))

other = threading.Thread(target=meanwhile)
other.start()
graph = tg.step(step)
for _ in range(4):
    assert torch.equal(graph(torch.ones(2, 4)), left(torch.ones(2, 4)))
other.join()
assert len(found) == 3
assert all(torch.equal(one, right(torch.ones(2, 4)).sin()) for one in found)
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [False, True])
def test_dynamo_is_loaded_by_one_thread_while_another_records(steps):
    script = FIRST.format(steps=steps)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
