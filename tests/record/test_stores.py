"""What a line replaces is what its instructions replace that run, one after the other."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import torch

from tests.contract.models import Function
from torchgraph.testing import counters


def test_of_two_stores_in_one_line_the_one_that_runs_counts():
    patience = SimpleNamespace(best=True, bad=0)

    def build(x):
        if patience.best: patience.bad = 0  # fmt: skip  # noqa: E701 -- in a line
        else: patience.bad += 1  # fmt: skip  # noqa: E701 -- in a line
        return x * 2

    graph = Function(build)
    expected = 0
    before = counters.replays
    for best in (True, True, False, False, False, True, False, False, False, False):
        patience.best = best
        expected = 0 if best else expected + 1
        graph(torch.ones(2))
        assert patience.bad == expected
    assert counters.replays > before


def test_a_line_that_moves_a_number_on_and_goes_by_it_reads_it():
    held, rows, named = SimpleNamespace(n=0, phase=0), [0, ""], {"n": 0, "text": ""}

    def build(x):
        held.n += 1; held.phase = held.n // 4  # fmt: skip  # noqa: E702 -- in a line
        rows[0] += 1; rows[1] = "late" if rows[0] > 6 else "soon"  # fmt: skip  # noqa: E702
        named["n"] += 1; named["text"] = f"{named['n'] // 3}"  # fmt: skip  # noqa: E702
        return x * 2

    graph = Function(build)
    graph.config.set_look_again("off")
    before = counters.replays
    for n in range(1, 10):
        graph(torch.ones(2))
        assert (held.n, held.phase) == (n, n // 4)
        assert rows == [n, "late" if n > 6 else "soon"]
        assert named == {"n": n, "text": f"{n // 3}"}
    assert counters.replays > before


def test_a_number_that_a_line_takes_away_is_gone_after_replays():
    held = SimpleNamespace()

    def build(x):
        delattr(held, "seen")
        return x * 2

    graph = Function(build)
    for _ in range(5):
        held.seen = 1
        graph(torch.ones(2))
        assert not hasattr(held, "seen")


def test_a_view_of_an_array_is_written_through_it():
    held = SimpleNamespace(rows=np.zeros((2, 3)))

    def build(x):
        view = held.rows.T
        view[0] = 3
        return x * 2

    graph = Function(build)
    for _ in range(6):
        held.rows.fill(0)
        graph(torch.ones(2))
        assert held.rows.tolist() == [[3, 0, 0], [3, 0, 0]]


def numbers():
    for number in itertools.count():
        yield 1.0 + number


def assert_each_call_takes_the_next(graph, expected):
    for number in range(8):
        assert torch.equal(graph(torch.ones(2)), torch.ones(2) * expected(number))


def test_each_call_takes_the_next_of_a_generator(recwarn):
    held = SimpleNamespace(sent=numbers(), asked=numbers())
    graph = Function(lambda x: x * held.sent.send(None) * held.asked.__next__())
    assert_each_call_takes_the_next(graph, lambda number: (1.0 + number) ** 2)


def test_a_bound_method_of_a_random_generator_draws_in_each_call(recwarn):
    choice = random.Random(3).choice
    other = random.Random(3)
    graph = Function(lambda x: x * choice([1.0, 2.0, 4.0]))
    assert_each_call_takes_the_next(graph, lambda _: other.choice([1.0, 2.0, 4.0]))


def test_a_class_that_code_without_a_modules_name_makes_is_the_users():
    made = {"torch": torch}
    lines = "class Held: n = 0", "def build(x):", " Held.n += 1", " return x * (Held.n // 3)"
    exec("\n".join(lines), made)
    graph = Function(made["build"])
    graph.config.set_look_again("off")
    for n in range(1, 12):
        assert graph(torch.ones(1)).item() == n // 3
        assert made["Held"].n == n
