"""A logger in `build()`: its level counts, and not the memo in which it keeps what levels gave."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from tests.contract.models import Function
from torchgraph.testing import counters

LOG = logging.getLogger("tests.contract.loggers")
X = torch.ones(3)


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """The levels as they were before."""
    loggers = [LOG, *_above(LOG)]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
    logging.disable(logging.NOTSET)


def _above(logger: logging.Logger) -> list[logging.Logger]:
    return [] if logger.parent is None else [logger.parent, *_above(logger.parent)]


def doubled_where_asked(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if LOG.isEnabledFor(logging.INFO) else x + 0


def told(x: torch.Tensor) -> torch.Tensor:
    LOG.debug("a batch of %d", len(x))
    return x * 2


def test_what_another_logger_is_set_to_records_nothing() -> None:
    graph = Function(told)
    for _ in range(3):
        graph(X)
    before = counters.captures, counters.replays
    logging.getLogger("tests.contract.another").setLevel(logging.ERROR)
    assert graph(X).tolist() == [2, 2, 2]
    assert (counters.captures, counters.replays) == (before[0], before[1] + 1)


@pytest.mark.parametrize("logger", [LOG, *_above(LOG)], ids=lambda logger: str(logger.name))
def test_a_level_is_looked_at_in_each_call(logger: logging.Logger) -> None:
    logger.setLevel(logging.ERROR)
    graph = Function(doubled_where_asked)
    assert [graph(X).sum().item() for _ in range(3)] == [3, 3, 3]
    logger.setLevel(logging.INFO)
    assert [graph(X).sum().item() for _ in range(3)] == [6, 6, 6]


def test_so_is_what_is_disabled_for_all() -> None:
    LOG.setLevel(logging.INFO)
    graph = Function(doubled_where_asked)
    assert [graph(X).sum().item() for _ in range(3)] == [6, 6, 6]
    logging.disable(logging.INFO)
    assert [graph(X).sum().item() for _ in range(3)] == [3, 3, 3]
