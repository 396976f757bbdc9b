"""Few compilations run at once; what a step waits for is first; dropped ones never run."""

from __future__ import annotations

import gc

import pytest

from torchgraph.lower.inductor.process.queue import Queue


class Compiles:
    """A compilation that ends when it is told to."""

    def __init__(self, log: list[str], name: str, *keys: str) -> None:
        self.log, self.name = log, name
        self.keys = frozenset(keys or [name])
        self.has_ended = self.yields = False

    def begin(self, *, idle: bool) -> None:
        self.has_ended = False
        self.log.append(f"{self.name} begins" + (" idle" if idle else ""))

    def put_back(self) -> None:
        self.has_ended = True
        self.log.append(f"{self.name} is put back")

    def hurry(self) -> None:
        self.log.append(f"{self.name} hurries")


@pytest.mark.parametrize(
    ("cores", "slots", "threads"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 2), (8, 2, 2), (16, 4, 2), (64, 8, 4), (96, 8, 6)],
)
def test_half_the_cores_compile(cores: int, slots: int, threads: int) -> None:
    queue = Queue(cores)
    assert (queue.slots, queue.threads) == (slots, threads)


@pytest.mark.parametrize(
    ("cores", "beside", "alone"), [(1, 1, 1), (2, 1, 2), (4, 1, 2), (8, 2, 4), (16, 4, 8)]
)
def test_all_cores_compile_while_a_step_waits(cores: int, beside: int, alone: int) -> None:
    queue = Queue(cores)
    assert (queue.processes(idle=True), queue.processes(idle=False)) == (beside, alone)


def test_twenty_graphs_have_one_slot_of_two_cores() -> None:
    queue, log = Queue(2), []
    all_ = [Compiles(log, str(number)) for number in range(20)]
    for one in all_:
        queue.put(one, first=False)
    assert log == ["0 begins idle"]
    assert [queue.before(one) for one in all_[:2]] == [0, 1]
    all_[0].has_ended = True
    queue.advance()
    assert log == ["0 begins idle", "1 begins idle"]


def test_what_a_step_waits_for_is_next_and_what_runs_hurries() -> None:
    queue, log = Queue(2), []
    first, second, third = (Compiles(log, name) for name in "abc")
    for one in (first, second, third):
        queue.put(one, first=False)
    queue.advance(third)
    assert log == ["a begins idle", "a hurries"]
    first.has_ended = True
    queue.advance(third)
    assert log[2:] == ["c begins", "c hurries"]


def test_what_was_begun_ahead_yields_to_what_a_step_waits_for() -> None:
    queue, log = Queue(2), []
    ahead, other = Compiles(log, "a"), Compiles(log, "b")
    ahead.yields = True
    queue.put(ahead, first=False)
    queue.put(other, first=True)
    assert log == ["a begins idle", "a is put back", "b begins", "b hurries"]
    other.has_ended = True
    queue.advance()
    assert log[4:] == ["a begins idle"]
    queue.advance(ahead)  # a step waits for it now
    assert log[5:] == ["a hurries"]


def test_it_yields_neither_a_free_slot_nor_what_is_waited_for() -> None:
    queue, log = Queue(8), []
    ahead, same, other = Compiles(log, "a", "key"), Compiles(log, "b", "key"), Compiles(log, "c")
    ahead.yields = True
    queue.put(ahead, first=False)
    queue.put(other, first=True)
    queue.put(same, first=True)
    assert "a is put back" not in log


def test_equal_graphs_compile_once() -> None:
    """The second one waits for the first, and finds its code."""
    queue, log = Queue(64), []
    one, same, other = Compiles(log, "a", "key"), Compiles(log, "b", "key"), Compiles(log, "c")
    for compilation in (one, same, other):
        queue.put(compilation, first=False)
    assert log == ["a begins idle", "c begins idle"]
    one.has_ended = True
    queue.advance()
    assert log[2:] == ["b begins idle"]


def test_a_dropped_one_never_runs() -> None:
    queue, log = Queue(2), []
    runs, waits, dropped = (Compiles(log, name) for name in "abc")
    for one in (runs, dropped, waits):
        queue.put(one, first=False)
    del dropped, one
    gc.collect()
    runs.has_ended = True
    queue.advance()
    assert log == ["a begins idle", "b begins idle"]


def test_a_fork_has_an_empty_queue() -> None:
    queue, log = Queue(2), []
    runs, waits = Compiles(log, "a"), Compiles(log, "b")
    queue.put(runs, first=False)
    queue.put(waits, first=False)
    queue.forget()
    other = Compiles(log, "c")
    queue.put(other, first=False)
    assert log == ["a begins idle", "c begins idle"]
