"""``graph.report()``."""

from __future__ import annotations

from typing import Any


class Report:
    """What was captured and what became of it."""

    @classmethod
    def of(cls, replay: Any, cache: Any, seconds: dict[str, float], name: str) -> Report:
        """The report of one program."""
        raise NotImplementedError
