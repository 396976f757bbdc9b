"""Plays with the number of calls that programs serve, and the words of their warnings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests import support
from tests.hostile import kit
from tests.hostile.plays import Play
from torchgraph.counters import counters

FORMS: dict[str, kit.Form] = {"step": kit.step, "graph": kit.graph}


@dataclass
class Counted:
    """A play in one form beside eager, and the expectations that `Table` describes."""

    make: Callable[[], Play]
    form: str = "step"
    served: int | None = None
    least: int = 0
    recorded: int | None = None
    programs: int | None = None
    says: str | tuple[str, ...] | None = ""
    refused: type[Exception] | None = None
    tolerance: float = 0.0
    configure: Callable[[Any], Any] = lambda _: None
    made: list[Any] = field(default_factory=list)

    def check(self) -> Any:
        """Raises AssertionError where it is not as expected; the Graph that was compared."""
        expected = kit.perform(self.make, kit.eager)
        if self.refused:
            refusing = partial(self._called, fallback="error")
            found = kit.perform(self.make, refusing, self.refused)
            kit.check_refusal(expected, found, self.refused)
            self._check_words([str(found.outcomes[-1].raised)])
        recorded = counters.captures
        found = kit.perform(self.make, self._called)
        recorded = counters.captures - recorded
        kit.check_same(expected, found, self.tolerance)
        if not self.refused:
            self._check_words([str(one) for one in found.told if isinstance(one, kit.WORDS)])
            self._check_counts(found.served, recorded)
        return self.made[-1]

    def _called(self, play: Play, fallback: str = "eager") -> Any:
        made: Any = FORMS[self.form](play, fallback=fallback)
        self.configure(made)
        self.made.append(made)
        return made

    def _check_words(self, told: list[str]) -> None:
        if self.says is not None:
            says = self.says if isinstance(self.says, tuple) else (self.says,) * bool(self.says)
            assert len(told) == len(says), told
            assert all(map(re.search, says, told)), told

    def _check_counts(self, served: int, recorded: int) -> None:
        assert self.served in (None, served), f"programs served {served} calls"
        assert served >= self.least, f"programs served {served} calls"
        assert self.recorded in (None, recorded), f"{recorded} calls were recorded"
        held = len(support.replays(self.made[-1]))
        assert self.programs in (None, held), f"there are {held} programs"


class Table(list[Any]):
    """Parameters of a test: rows of a play and the expectations of it."""

    def __call__(
        self,
        make: Callable[[], Play] | None = None,
        *,
        name: str = "",
        slow: bool = False,
        filterwarnings: str = "",
        **expected: Any,
    ) -> Any:
        """Decorator of the function that makes the play.

        Args:
            name: that of the play, if the function has no good one.
            slow: left to `make test-all`.
            filterwarnings: as pytest takes it.
            expected: of the row:
                form: "step", if it is not given, or "graph".
                served: how many calls programs serve.
                least: how many at least.
                recorded: how many calls are recorded.
                programs: how many are held at the end.
                says: what is found in the warning that the step stays in eager, or in the error;
                    one for each of several; none may be given where it is empty, any if None.
                refused: the error that the first or the second call raises; then eager runs all.
                tolerance: how far numbers may be from eager's.
                configure: is given the Graph before the first call.
        """
        if make is None:
            return partial(self, name=name, slow=slow, filterwarnings=filterwarnings, **expected)
        marks = [pytest.mark.slow] if slow else []
        if filterwarnings:
            marks.append(pytest.mark.filterwarnings(filterwarnings))
        row = Counted(make, **expected)
        self.append(pytest.param(row, id=name or make.__name__, marks=marks))
        return make

    def rows(self, plays: Mapping[str, Callable[[], Play]], **expected: Any) -> None:
        """Plays by name, each made by one expression; all have the same keywords."""
        for name, make in plays.items():
            self(make, name=name, **expected)
