"""Faults that a seeded mutator plants: check names the node, or one that reads it."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.support import confirm, replays
from torchgraph.errors import GraphError

from .mutants import Mutate, Planted, subject, with_hazard


@dataclass
class Tally:
    """How many faults changed a result, and how many of those were found where they are."""

    unplanted: int = 0
    """Seeds whose fault the verifier or a shape refuses, or that find no place for one."""
    silent: Counter[str] = field(default_factory=Counter)
    """Faults that changed no bit of any result, by kind."""
    named: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    passes: int = 0
    """Faults of passes whose pass and edit were named."""
    in_passes: int = 0

    @property
    def share(self) -> float:
        return self.named.total() / max(self.named.total() + len(self.missed), 1)

    def __str__(self) -> str:
        return (
            f"{self.named.total()} of {self.named.total() + len(self.missed)} attributed "
            f"({self.share:.1%}), the pass and edit of {self.passes} of {self.in_passes}, "
            f"{self.silent.total()} changed nothing, {self.unplanted} not planted; "
            f"{dict(self.named)}; missed: {self.missed}"
        )


def _plant(seed: int, tally: Tally) -> None:
    graph, batch = subject(seed)
    if seed % 10 == 9:
        confirm(graph, *batch)
        planted = with_hazard(replays(graph)[0], seed)
    else:
        mutate = Mutate(seed)
        graph.config.passes.insert(mutate, after="dce")
        planted = mutate.planted
    try:
        found = graph.check(*batch)
    except (
        GraphError,
        RuntimeError,
        ArithmeticError,
    ):  # refused by the verifier, or by an op as it runs
        found, planted = None, None
    if planted is None or not planted.kind:
        tally.unplanted += 1
    elif found is None:
        tally.silent[planted.kind] += 1
    else:
        _count(seed, found, planted, tally)


def _count(seed, found, planted: Planted, tally: Tally) -> None:
    if found.node in {planted.node, *planted.consumers}:
        tally.named[planted.kind] += 1
    else:
        tally.missed.append(f"{seed}: {planted.kind} at {planted.node}, {found.node} named")
    if planted.kind != "hazard":
        tally.in_passes += 1
        culprit = found.culprit
        tally.passes += culprit is not None and (culprit.name, culprit.edit) == ("mutate", 1)
    else:
        assert found.blame == "lowering"


def _tally(first: int, count: int) -> Tally:
    """Of so many faults that a program can hold."""
    tally = Tally()
    for seed in itertools.count(first):
        if seed - first - tally.unplanted == count:
            break
        _plant(seed, tally)
    sys.stdout.write(f"{tally}\n")  # the rates, for who runs it with -s
    return tally


@pytest.mark.slow
def test_some_random_faults():
    tally = _tally(0, 20)
    assert tally.named.total() >= 10, str(tally)
    assert tally.share >= 0.95
    assert tally.passes == tally.in_passes


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, 2000, 3000, 4000])
def test_two_hundred_random_faults(first):
    """Fifty each, so that none takes more than minutes."""
    tally = _tally(first, 50)
    assert tally.named.total() >= 30, str(tally)
    assert tally.share >= 0.95, str(tally)
    assert tally.passes >= 0.95 * tally.in_passes, str(tally)
