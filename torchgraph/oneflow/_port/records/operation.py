"""Operation: what a data module does with a batch, without the module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from .values import Value


class Stream(Iterator[Any]):
    """What an operation draws; an error that ended it comes again each time."""

    def __init__(self, draws: Iterator[Any]) -> None:
        self._draws = draws
        self._error: Exception | None = None

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return next(self._draws)
        except Exception as error:  # whatever ended it, it ends each later call
            self._error = error
            raise


class Operation(ABC):
    """A pure function of its inputs and of what was drawn for the step: it runs in any process."""

    def draws(self) -> Iterator[Any]:
        """What to give to `run`, step by step; the state of the operation, in one process."""
        return repeat(None)

    @abstractmethod
    def run(self, drawn: Any, *inputs: Value) -> tuple[Value, ...]:
        """The outputs of a step.

        Raises:
            BadRecord, NotPorted.
        """
