"""A predicate that ranks decide together: what one of them may not do, none does.

A program whose predicate fails on one rank runs there no further, and the others would wait for it
in the next collective. So before that collective they meet, and go on together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import fx

from ..distributed.coordination.exchange import Exchange
from .definition import define
from .expect import ValueMoved


class _Meeting(NamedTuple):
    exchange: Exchange
    seconds: float


_meeting: ContextVar[_Meeting | None] = ContextVar("_meeting", default=None)


@contextmanager
def meeting(exchange: Exchange, seconds: float) -> Iterator[None]:
    """In the block programs are run by all ranks of ``exchange`` together."""
    token = _meeting.set(_Meeting(exchange, seconds))
    try:
        yield
    finally:
        _meeting.reset(token)


def all_hold(holds: bool) -> bool:
    """True when the predicates hold on all ranks that run this program now."""
    found = _meeting.get()
    if found is None:
        return holds
    return found.exchange.same(1, found.seconds) if holds else _one_fails(found)


def _one_fails(found: _Meeting) -> bool:
    # Another number than any rank has whose predicates hold, and another one on each rank.
    found.exchange.same(2 + found.exchange.presence.rank, found.seconds)
    return False


class MovedElsewhere(ValueMoved):
    """Another rank's predicate failed; this rank does not have to tell the others."""

    def __init__(self) -> None:
        super().__init__("", "", other="another rank has met another value")


def tell(error: Exception, graphs: Iterable[fx.Graph]) -> None:
    """Tell the other ranks that a program with these graphs could not go on here."""
    meets = any(node.target is agree for graph in graphs for node in graph.nodes)
    if meets and not isinstance(error, MovedElsewhere):
        all_hold(False)


def _agree() -> None:
    if not all_hold(True):
        raise MovedElsewhere


def _nothing() -> None:
    """Do nothing: fake tensors meet no other rank."""


agree = define("agree() -> ()", _agree, _nothing, compiled=False)
"""Raises `ValueMoved` unless the predicates before it hold on all ranks."""

fx.node.has_side_effect(agree)
