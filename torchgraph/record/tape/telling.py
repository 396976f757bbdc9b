"""Who is told of the calls of modules, while they run."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from ...ir.program import CallRecord


class Told(Protocol):
    """Hears of each call of a module as it happens."""

    def called(self, record: CallRecord) -> None:
        """It begins: there are no outputs yet."""

    def returned(self, record: CallRecord) -> None:
        """It is over."""


telling: ContextVar[Told | None] = ContextVar("telling", default=None)
