"""Forked and spawned processes, workers of a DataLoader and threads beside a Graph."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.attack.loops import batch, made
from tests.contract.models import Eval, Function, Train, same
from tests.support import thinned_rows
from torchgraph._torch import patching
from torchgraph.errors import EagerWarning, GraphBroken

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def forked(function: Callable[[], object], seconds: float = 60.0) -> None:
    """Run ``function`` in a forked process, to whatever end."""
    child = os.fork()
    if not child:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError("the child hangs")


def ends_well(function: Callable[[], object]) -> None:
    """A forked process runs ``function`` to its end."""
    reader, writer = os.pipe()

    def told() -> None:
        function()
        os.write(writer, b"done")

    forked(told)
    os.close(writer)
    assert os.read(reader, 4) == b"done"
    os.close(reader)


class Aliases:
    """Another thread that records a step, and stays in it."""

    def __init__(self) -> None:
        self._inside, self._leave = threading.Event(), threading.Event()
        self.graph = Function(self._build)
        self._thread = threading.Thread(target=self.graph, args=(torch.ones(4),))

    def _build(self, x: torch.Tensor) -> torch.Tensor:
        self._inside.set()
        self._leave.wait()
        return x + 1

    def __enter__(self) -> Any:
        self._thread.start()
        self._inside.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("calls", "beside"), [(1, nullcontext), (5, nullcontext), (0, Aliases), (4, Aliases)]
)
def test_a_forked_child_goes_on_as_eager_does(calls: int, beside: Any) -> None:
    """Also a child that is forked while another thread records."""
    loop, twin = made("scheduler"), made("scheduler")
    graph = loop.graph()
    for step in (graph, twin.eager):
        torch.manual_seed(3)
        for number in range(calls):
            step(batch(number))

    def goes_on() -> None:
        for number in range(calls, calls + 4):
            before = torch.get_rng_state()
            got = graph(batch(number))
            torch.set_rng_state(before)
            assert same(got, twin.eager(batch(number)))
        assert same(loop.state(), twin.state())

    with beside():
        ends_well(goes_on)
    goes_on()  # and so does the parent


def test_a_graph_that_another_thread_was_in_is_broken_in_the_child() -> None:
    def says_so() -> None:
        with pytest.raises(GraphBroken, match="forked while another thread"):
            other.graph(torch.ones(4))
        other.graph.load_state_dict(other.graph.state_dict())
        other._leave.set()
        other.graph(torch.ones(4))

    with Aliases() as other:
        ends_well(says_so)


@pytest.mark.filterwarnings("ignore::torchgraph.errors.EagerWarning")
def test_signals_reach_a_child_that_was_forked_while_the_main_thread_ran_a_step() -> None:
    """What waits in the parent waits for a step that the child does not have."""
    statuses: list[int] = []

    def child() -> None:
        found = os.fork()
        if not found:
            handler = signal.getsignal(signal.SIGINT)
            os._exit(0 if handler is signal.default_int_handler else 3)
        statuses.append(os.waitpid(found, 0)[1])

    def build(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        return x + 1

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Function(build)(torch.ones(4))
    finally:
        signal.signal(signal.SIGINT, before)
    assert statuses == [0]


@pytest.mark.parametrize("how", ["os._exit", "sys.exit", "an exception"])
def test_however_a_child_ends_the_parent_goes_on(how: str) -> None:
    loop = made("plain")
    graph = loop.graph()
    for number in range(4):
        graph(batch(number))

    def end() -> None:
        graph(batch(5))
        if how == "os._exit":
            os._exit(0)
        if how == "sys.exit":
            sys.exit(0)
        raise ValueError(how)

    before = loop.state()
    forked(end)
    assert same(loop.state(), before)
    graph(batch(5))


# --- DataLoaders ----------------------------------------------------------------------------------


class Rows(Dataset[torch.Tensor]):
    """Holds the model that is trained, as datasets do that score their rows."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((4,), float(number))


def trained_beside_workers(first: int, method: str, *, persistent: bool) -> tuple[Any, Any]:
    """What a Graph and eager come to; ``first``: calls before there are workers."""
    ends = []
    for served in (True, False):
        loop = made("plain")
        step = loop.graph() if served else loop.eager
        loader = DataLoader(
            Rows(loop.model),
            batch_size=2,
            num_workers=2,
            multiprocessing_context=method,
            persistent_workers=persistent,
        )
        torch.manual_seed(3)
        for number in range(first):
            step(batch(number))
        losses = [step(rows) for _ in range(2) for rows in loader]
        ends.append((losses, loop.state()))
    return ends[0], ends[1]


@pytest.mark.parametrize(
    ("first", "method", "persistent"),
    thinned_rows(
        [
            *itertools.product([0, 3], ["fork"], [False, True]),
            (3, "spawn", False),
            (3, "forkserver", False),
        ],
        lambda first, method, persistent: method == "fork" and persistent == (first == 0),
    ),
)
def test_a_graph_beside_the_workers_of_a_loader(first: int, method: str, persistent: bool) -> None:
    got, expected = trained_beside_workers(first, method, persistent=persistent)
    assert same(got, expected)


_shared: list[Train] = []


def loss_of(number: int) -> torch.Tensor:
    torch.manual_seed(number)
    return _shared[0](batch(number))


def test_a_graph_in_the_workers_of_a_pool() -> None:
    loop = made("plain")
    _shared[:] = [loop.graph()]
    for number in range(4):
        loss_of(number)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        got = pool.map(loss_of, [1, 2, 3])
    _shared.clear()
    twin = made("plain")
    for number in [0, 1, 2, 3]:
        torch.manual_seed(number)
        twin.eager(batch(number))
    for number, loss in zip([1, 2, 3], got, strict=True):
        torch.manual_seed(number)
        assert same(loss, twin.eager(batch(number)))


# --- threads --------------------------------------------------------------------------------------


class Server:
    """A thread that answers with what a function returns: a prefetching or scoring pipeline."""

    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        self._function = function
        self._asked: queue.Queue[torch.Tensor | None] = queue.Queue()
        self._answers: queue.Queue[object] = queue.Queue()
        self._thread = threading.Thread(target=self._serve)
        self.answers: list[object] = []

    def _serve(self) -> None:
        while (x := self._asked.get()) is not None:
            try:
                self._answers.put(self._function(x))
            except Exception as error:  # raised by the test, in its own thread
                self._answers.put(error)

    def __call__(self, x: torch.Tensor) -> None:
        self._asked.put(x)
        self.answers.append(self._answers.get(timeout=60))

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.put(None)
        self._thread.join()


@pytest.fixture
def quietly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody waits long for another thread, nor warns of it."""
    monkeypatch.setattr(patching, "_PATIENCE", 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quietly")
@pytest.mark.parametrize("kind", ["eval", "scheduler", "replayed"])
def test_a_step_that_waits_for_the_graph_of_another_thread(kind: str) -> None:
    """No deadlock: what cannot be recorded meanwhile runs as eager runs it."""
    asked, twin = made("scheduler"), made("scheduler")
    score = Eval(asked.model.eval()) if kind == "eval" else asked.graph()
    eager: Callable[[Any], Any] = twin.model.eval() if kind == "eval" else twin.eager
    for number in range(4 * (kind == "replayed")):
        torch.manual_seed(number)
        score(batch(number))
        torch.manual_seed(number)
        eager(batch(number))
    model = nn.Linear(4, 2)

    with Server(score) as server:

        def build(x: torch.Tensor) -> torch.Tensor:
            server(x)
            loss = model(x).square().mean()
            loss.backward()
            return loss

        graph = Function(build, torch.optim.Adam(model.parameters()), model=model)
        for number in range(2):
            torch.manual_seed(number)
            graph(batch(number))
    for number, answer in enumerate(server.answers):
        torch.manual_seed(number)
        assert same(answer, eager(batch(number)).detach()), answer
    if kind != "eval":
        assert same(asked.state()[:-2], twin.state()[:-2])
        assert score.state_dict()["_train"]["step"] == 2 + 4 * (kind == "replayed")


def test_a_call_beside_a_recording_says_why_it_is_in_eager(monkeypatch) -> None:
    monkeypatch.setattr(patching, "_PATIENCE", 0.1)
    graph = Eval(nn.Linear(4, 2))
    with Aliases(), pytest.warns(EagerWarning, match="another thread records a step"):
        graph(torch.ones(3, 4))
    graph(torch.ones(3, 4))
    assert "another thread records a step" in str(graph.report())


def in_threads(*functions: Callable[[], object]) -> None:
    """Run them at once."""
    threads = [threading.Thread(target=function) for function in functions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EagerWarning)  # a busy machine makes one wait too long
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_threads_that_record_at_once_are_each_as_eager() -> None:
    loops = [made("function") for _ in range(4)]
    graphs = [loop.graph() for loop in loops]
    for loop in loops:
        loop.model.eval()
    losses: list[list[torch.Tensor]] = [[] for _ in loops]

    def train(number: int) -> None:
        losses[number] += [graphs[number](batch(step)) for step in range(6)]

    in_threads(*(partial(train, number) for number in range(4)))
    twin = made("function")
    twin.model.eval()
    expected = [twin.eager(batch(step)) for step in range(6)]
    for got in losses:
        assert same(got, expected)


def test_one_graph_called_by_many_threads_takes_whole_steps() -> None:
    loop, twin = made("scheduler"), made("scheduler")
    for one in (loop, twin):
        one.model.eval()
    graph = loop.graph()

    def train() -> None:
        for _ in range(5):
            graph(batch(0))

    in_threads(*[train] * 4)
    for _ in range(20):
        twin.eager(batch(0))
    assert same(loop.state()[:-2], twin.state()[:-2])
    assert graph.state_dict()["_train"]["step"] == 20
