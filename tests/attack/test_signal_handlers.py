"""Whoever raises in the middle of a step, and whoever hears of a signal."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from tests.attack.loops import Stop, as_eager_after, batch, ctrl_c, handled, made
from tests.contract.models import Function, Train
from torchgraph.errors import GraphBroken, GraphError
from torchgraph.replay import interrupts
from torchgraph.replay.interrupts import SignalsWait

pytestmark = pytest.mark.usefixtures("interruptible")
ACTIONS: list[Callable[[], object]] = []


@torch.library.custom_op("torchgraph_tests::act_in_a_step", mutates_args=())
def act(x: torch.Tensor) -> torch.Tensor:
    for action in ACTIONS:
        action()
    return x.clone()


act.register_fake(torch.empty_like)
act.register_autograd(lambda ctx, gradient: gradient)


class Late(torch.optim.Optimizer):
    """Acts between the updates of two parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            gradient = act(parameter.grad) if number == 1 else parameter.grad
            parameter.add_(gradient, alpha=-0.1)


def replayed() -> tuple[Train, nn.Module]:
    """A Graph whose program acts between two writes."""
    model = nn.Linear(4, 2)
    graph = Train(model, Late(model.parameters()))
    for step in range(4):
        graph(batch(step))
    return graph, model


@pytest.fixture(autouse=True)
def _no_actions() -> Iterator[None]:
    yield
    ACTIONS.clear()


def killing(number: int) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM,), (signal.SIGALRM,), (signal.SIGUSR1,), (signal.SIGINT, signal.SIGTERM)],
)
def test_handlers_that_raise_wait_for_the_end_of_a_replay(numbers: tuple[int, ...]) -> None:
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        heard.append(number)
        raise Stop

    graph, _ = replayed()
    ACTIONS.extend(map(killing, numbers))
    with ExitStack() as stack:
        for number in numbers:
            stack.enter_context(handled(number, handler))
        with pytest.raises(Stop):
            graph(batch(4))
        assert graph.state_dict()["_train"]["step"] == 5
    assert sorted(heard) == sorted(numbers)
    ACTIONS.clear()
    graph(batch(5))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Stop])
def test_what_is_raised_in_the_middle_of_a_step_breaks_the_graph(
    error: type[BaseException],
) -> None:
    """No handler waits here: it is raised between two writes."""

    def raised() -> None:
        raise error

    graph, _ = replayed()
    saved = {name: dict(held) for name, held in graph.state_dict().items()}
    ACTIONS.append(raised)
    with pytest.raises(error):
        graph(batch(4))
    ACTIONS.clear()
    with pytest.raises(GraphBroken):
        graph(batch(5))
    graph.load_state_dict(saved)
    graph(batch(5))


def raise_in(thread: int, error: type[BaseException]) -> None:
    """As debuggers and notebooks do it: at any instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["plain", "scheduler"])
def test_asynchronous_exceptions_leave_whole_steps_or_say_that_they_do_not(kind: str) -> None:
    """They cannot wait: where one leaves half a step, the Graph knows it."""
    chance = random.Random(kind)
    for trial in range(60):
        loop = made(kind)
        graph = loop.graph()
        torch.manual_seed(3)

        def train(graph: Train = graph) -> None:
            try:
                for step in range(10_000):
                    graph(batch(step))
            except Stop:
                pass

        thread = threading.Thread(target=train)
        thread.start()
        time.sleep(chance.uniform(0.05, 0.3))
        while thread.is_alive():  # one that comes in a `__del__` is lost, in eager too
            raise_in(thread.ident or 0, Stop)
            thread.join(2)
        try:
            as_eager_after(loop, graph, kind, 3)
        except GraphBroken:
            continue
        except AssertionError:
            with pytest.raises(GraphBroken):
                graph(batch(trial))


@pytest.mark.parametrize("ignored", [False, True])
def test_a_handler_of_the_users_is_called_once_and_stays(ignored: bool) -> None:
    heard: list[int] = []
    graph, _ = replayed()
    ACTIONS.append(ctrl_c)
    handler = signal.SIG_IGN if ignored else lambda number, frame: heard.append(number)
    with handled(signal.SIGINT, handler):
        graph(batch(4))
        Function(lambda x: act(x))(torch.ones(2))
    assert heard == ([] if ignored else [signal.SIGINT] * 2)


def test_asyncio_hears_a_signal_once() -> None:
    heard: list[int] = []
    graph, _ = replayed()
    ACTIONS.append(killing(signal.SIGTERM))

    async def train() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, heard.append, 1)
        graph(batch(4))
        Function(lambda x: act(x))(torch.ones(2))
        await asyncio.sleep(0.1)
        loop.remove_signal_handler(signal.SIGTERM)

    asyncio.run(train())
    assert 1 <= len(heard) <= 2  # two signals; the loop may wake up once for both


def test_a_call_in_another_thread_leaves_signals_alone() -> None:
    graph, _ = replayed()
    before, seen = signal.getsignal(signal.SIGINT), []
    ACTIONS.append(lambda: seen.append(signal.getsignal(signal.SIGINT)))
    thread = threading.Thread(target=graph, args=(batch(4),))
    thread.start()
    thread.join()
    assert seen == [before]


def test_where_no_handler_can_be_set_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedded: Python's main thread is another one than the interpreter's."""

    def refuses(number: int, handler: object) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    monkeypatch.setattr("torchgraph.replay.interrupts._set_handler", refuses)
    graph, _ = replayed()
    graph(batch(4))


def test_an_exception_while_handlers_are_put_in_place_puts_them_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = interrupts._set_handler

    def interrupted(number: int, handler: Any) -> Any:
        plain(number, handler)
        raise Stop if waits._is_ours(handler) else GraphError("put back")

    waits, before = SignalsWait(), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "_set_handler", interrupted)
        with pytest.raises(GraphError, match="put back"), waits:
            pass
    assert signal.getsignal(signal.SIGINT) is before
