"""``debug(ranks=...)``: who of several ranks prints."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from torch import nn

import torchgraph as tg
from tests.distributed.spawn import run


class Step(tg.Graph):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


ASKED: list[Any] = [None, 0, 1, [1], [0, 1], -1, [2]]


def printed(rank: int) -> list[bool]:
    """For each way to ask, whether this rank says that it builds its graph."""
    found = []
    for ranks in ASKED:
        graph = Step()
        graph.debug(0, ranks=ranks)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for _ in range(2):
                graph(torch.ones(1, 2))
        found.append("building graph" in out.getvalue())
    return found


@pytest.fixture(scope="module")
def ranks() -> list[list[bool]]:
    return run(printed, 2)


@pytest.mark.parametrize(
    ("number", "who"), list(enumerate([{0}, {0}, {1}, {1}, {0, 1}, {0, 1}, set()]))
)
def test_those_print_that_are_asked_to(ranks, number, who):
    assert {rank for rank in range(2) if ranks[rank][number]} == who
