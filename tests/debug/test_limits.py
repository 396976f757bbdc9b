"""``print`` of a large Graph: bounded, and what is left out is counted. ``full_text`` has all."""

from __future__ import annotations

import cProfile
import io
import pstats
import re

import pytest
import torch
from rich.console import Console
from torch import nn, optim

import torchgraph as tg
from tests.support import replay_of
from torchgraph.debug import branches, tree
from torchgraph.errors import InvalidOption
from torchgraph.lower.lifetimes import Lifetimes

CUT = "… graph.full_text() has all lines, print(graph.model.layer) those of a part"


def deep(layers: int) -> tg.Graph:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
    graph = tg.train_step(model, nn.functional.mse_loss, optim.SGD(model.parameters(), lr=0.1))
    graph.config.set_backend("aten")
    return graph


@pytest.fixture
def few_lines(monkeypatch):
    monkeypatch.setattr(tree, "LINES", 50)
    monkeypatch.setattr(branches, "_ROWS", 10)
    monkeypatch.setattr(tree.text, "__defaults__", (50,))


def test_a_small_graph_is_shown_whole():
    graph = deep(3)
    assert str(graph) == graph.full_text()
    assert "…" not in str(graph)


def test_a_large_graph_is_cut_and_the_rest_counted():
    graph = deep(1000)
    shown, whole = str(graph).splitlines(), graph.full_text().splitlines()
    assert len(shown) < tree.LINES + 100
    assert len(whole) > 3000
    (rest,) = [re.search(r"… (\d+) more modules", line) for line in shown if "more mod" in line]
    modules = [line for line in shown if "(MODULE:" in line]
    assert len(modules) + int(rest[1]) == 1 + 1000
    assert shown[-1] == CUT
    assert shown[-2] == ")"


def test_operators_are_counted_too(few_lines):
    graph = deep(20)
    for _ in range(3):
        graph(torch.randn(3, 2), torch.randn(3, 2))
    shown = str(graph)
    assert len(shown.splitlines()) < 100
    assert re.search(r"… \d+ more operators", shown)
    assert shown.endswith(CUT)
    assert repr(graph.model).endswith(CUT)
    assert "…" not in graph.full_text()


@pytest.mark.parametrize("lines", [1, 7, 30, 200])
def test_every_limit_keeps_the_brackets(lines):
    graph = deep(20)
    text = graph.full_text(lines).removesuffix(CUT)
    assert len(text.splitlines()) <= lines + 30
    opened = [line for line in text.splitlines() if line.endswith(": (")]
    assert len(opened) == sum(line.strip() == ")" for line in text.splitlines())


def test_the_rich_tree_is_cut_too(few_lines):
    screen = Console(file=io.StringIO(), width=80)
    screen.print(deep(40))
    shown = screen.file.getvalue()
    assert "… 31 more modules" in shown
    assert len(shown.splitlines()) < 40
    assert max(map(len, shown.splitlines())) <= 80


def calls_of(function):
    """How many calls it makes, of Python's functions and of C's."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return pstats.Stats(profile).total_calls


def test_report_and_print_are_linear_in_the_layers():
    graphs = [deep(layers) for layers in (50, 250)]
    for graph in graphs:
        for _ in range(3):
            graph(torch.randn(3, 2), torch.randn(3, 2))
    small, large = (str(graph.report()) for graph in graphs)
    assert len(large) < len(small) + 500
    for look in ("report", "__repr__"):
        few, many = (calls_of(getattr(graph, look)) for graph in graphs)
        assert many < 6 * few


class Counted(dict):
    """It counts the entries that somebody walks over."""

    walked = 0

    def __iter__(self):
        for key in super().__iter__():
            Counted.walked += 1
            yield key

    def keys(self):
        Counted.walked += len(self)
        return super().keys()


def test_lifetimes_walk_over_no_table_for_each_node():
    graph = deep(50)
    for _ in range(3):
        graph(torch.randn(3, 2), torch.randn(3, 2))
    program = replay_of(graph).executable.programs[0]
    found = Lifetimes.__new__(Lifetimes)
    with pytest.MonkeyPatch.context() as patch:
        enter = Lifetimes._enter

        def entered(self, node):
            if not isinstance(self._owners, Counted):
                self._owners = Counted(self._owners)
            enter(self, node)

        patch.setattr(Lifetimes, "_enter", entered)
        Lifetimes.__init__(found, program)
    assert Counted.walked == 0


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "10", True])
def test_a_limit_is_a_number_of_lines(wrong):
    with pytest.raises(InvalidOption, match="full_text takes an int of at least 1"):
        deep(1).full_text(wrong)
