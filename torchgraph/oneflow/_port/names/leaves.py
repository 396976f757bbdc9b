"""Functions that `oneflow.fx` records as nodes, where a script asks for them while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any

_record: ContextVar[Callable[[FunctionType], Any] | None] = ContextVar("_record", default=None)


@contextmanager
def recorded_by(record: Callable[[FunctionType], Any]) -> Iterator[None]:
    """A block in which `as_asked` gives what ``record`` makes of a function."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


def as_asked(value: Any) -> Any:
    """What a script gets that asks for an adapter."""
    record = _record.get()
    return value if record is None or not isinstance(value, FunctionType) else record(value)
