"""Steps that let other threads work: threads of TorchScript, and of Python."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.contract.models import same, snapshot
from torchgraph.errors import EagerWarning, NoProgram

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:FutureWarning"),  # torch 2.15
]
Tensor = torch.Tensor


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(1) as made:
        yield made


def scaled(x: Tensor, n: int) -> Tensor:
    return x * torch.tensor([n], dtype=x.dtype)


def forked(x: Tensor, mean: Tensor) -> Tensor:
    parts = [torch.jit.fork(scaled, x, 1), torch.jit.fork(scaled, x, 2)]
    return torch.jit.wait(parts[0]) + torch.jit.wait(parts[1])


def raised(mean: Tensor) -> Tensor:
    return mean.add_(1.0)


def forked_write(x: Tensor, mean: Tensor) -> Tensor:
    return x * torch.jit.wait(torch.jit.fork(raised, mean))


def drawn(x: Tensor) -> Tensor:
    return x * torch.rand([4])


def forked_draw(x: Tensor, mean: Tensor) -> Tensor:
    return torch.jit.wait(torch.jit.fork(drawn, x))


def listed(x: Tensor, mean: Tensor) -> Tensor:
    values: list[float] = mean.tolist()
    return x * values[0]


class Play:
    """A training step whose middle is ``part``, with eager beside it."""

    def __init__(self, part, fallback):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.model.register_buffer("mean", torch.ones(4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._part = part
        self.step = tg.step(self._step) if fallback else self._step
        if fallback:
            self.step.config.set_backend("aten")
            self.step.config.set_fallback(fallback)

    def _step(self, x):
        self.optimizer.zero_grad()
        loss = self._part(self.model(x), self.model.mean).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, count=4):
        torch.manual_seed(1)
        results = [self.step(torch.randn(3, 4)).clone() for _ in range(count)]
        return results, snapshot(self.model, self.optimizer), torch.get_rng_state()


@pytest.mark.parametrize("part", [forked, forked_write, forked_draw, listed])
def test_what_torchscript_does_unheard_runs_in_eager(part):
    part = torch.jit.script(part)
    with pytest.warns(EagerWarning, match=r"test_other_threads.*in _step"):
        got = Play(part, "eager").run()
    assert same(got, Play(part, None).run())


@pytest.mark.parametrize("part", [forked, forked_write])
def test_an_op_of_another_thread_is_refused_and_taken_back(part):
    play = Play(torch.jit.script(part), "error")
    before = snapshot(play.model, play.optimizer)
    with pytest.raises(NoProgram, match=r"(?s)on other threads .*test_other_threads.*in _step"):
        play.step(torch.ones(3, 4))
    assert same(snapshot(play.model, play.optimizer), before)


def in_a_pool(function):
    return lambda pool, *given: pool.submit(function, *given).result()


def in_a_thread(pool, x, mean):
    found = []
    thread = threading.Thread(target=lambda: found.append(x * 2))
    thread.start()
    thread.join()
    return found[0]


PARTS = {
    "computes": in_a_pool(lambda x, mean: x * 3),
    "writes": in_a_pool(lambda x, mean: x * mean.add_(1)),
    "writes what the step made": lambda pool, x, mean: (
        pool.submit((made := x.detach() * 2).add_, 1).result() * x + made
    ),
    "reads": lambda pool, x, mean: x * pool.submit(lambda: float(x.detach().sum())).result(),
    "makes": lambda pool, x, mean: x * pool.submit(lambda: torch.arange(4.0)).result(),
    "thread": in_a_thread,
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("fallback", ["eager", "error"])
def test_work_handed_to_a_thread_of_python(name, fallback, pool):
    def part(x, mean):
        return PARTS[name](pool, x, mean)

    with pytest.warns(EagerWarning, match=r"another thread work by .*\(at .*test_other_threads"):
        got = Play(part, fallback).run()
    assert same(got, Play(part, None).run())


def test_a_thread_that_waits_for_work_writes_a_buffer():
    """Nothing is seen of the thread, which was there before; that the buffer moved is."""
    work, done = queue.SimpleQueue(), queue.SimpleQueue()

    def serve():
        while (tensor := work.get()) is not None:
            done.put(tensor.mul_(1.5))

    def part(x, mean):
        work.put(mean)
        done.get()
        return x * mean

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.warns(EagerWarning, match=r"model\.mean written by what no program hears of"):
            got = Play(part, "error").run()
        assert same(got, Play(part, None).run())
    finally:
        work.put(None)
        thread.join()


def test_futures_of_the_same_thread_are_recorded():
    def part(x, mean):
        future = torch.futures.Future()
        future.set_result(x)
        return future.then(lambda done: done.value() * 2).wait() + torch.jit.wait(
            torch.jit.fork(torch.relu, x)  # outside of a script it runs at once
        )

    play = Play(part, "error")
    assert same(play.run(6), Play(part, None).run(6))
    assert play.step.report().calls.programs > 0
