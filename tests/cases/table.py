"""Cases: a play runs in eager, and beside it by ``tg.step`` or as a `Graph`; both must agree.

A case is a function that makes a `Play` anew for each contender. After every call the result, the
arguments, what is watched and the random states are eager's bits, and what was raised is eager's
error; or the call raised the error that the case names and has changed nothing, and with
`set_fallback` all calls are then eager's. The calls that programs serve are counted, and each
warning of torchgraph is one that the case expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests import support
from tests.cases.comparison import Run, check_refusal, check_same, perform
from tests.cases.forms import FORMS
from tests.cases.plays import Play
from torchgraph.errors import CacheThrashWarning, EagerWarning, GraphWarning, NoProgram

WORDS = (EagerWarning, CacheThrashWarning)
"""Warnings that tell why programs serve few calls or none."""


class Case(NamedTuple):
    """A play in one form, and what is expected of it."""

    make: Callable[[], Play]
    form: str = "step"
    """One of `FORMS`."""
    fallback: str = "error"
    """As `set_fallback` takes it."""
    refused: type[Exception] | None = None
    """The error that the first or the second call raises."""
    served: int | None = None
    """The calls that programs serve. None: any number, but where it is 0 a warning says why."""
    least: int = 0
    """How many calls programs serve at least."""
    serves: bool = False
    """Whether a program has to serve the last call."""
    recorded: int | None = None
    """The programs that are captured; None stands for any number."""
    programs: int | None = None
    """The programs that are held at the end; None stands for any number."""
    says: str | tuple[str, ...] | None = ""
    """Patterns of the only warnings, in their order, or of the error that refuses: one, or a tuple
    of several; empty where there is none, None where any may come."""
    tolerance: float = 0.0
    """How far numbers may be from eager's; 0 stands for the same bits."""
    configure: Callable[[Any], Any] = lambda _: None
    """Is given the Graph before its first call."""

    def check(self) -> Run:
        """The run in this form; raises AssertionError where it is not as expected."""
        expected = perform(self.make, lambda play: play.step)
        if self.refused:
            found = self._perform("error", self.refused)
            check_refusal(expected, found, self.refused)
            self._check_words([str(found.outcomes[-1].raised)])
            if issubclass(self.refused, NoProgram) or self.fallback == "eager":
                found = self._perform("eager")
                check_same(expected, found, self.tolerance)
            return found
        found = self._perform(self.fallback)
        check_same(expected, found, self.tolerance)
        self._check_words([str(one) for one in found.told if isinstance(one, GraphWarning)])
        self._check_counts(found)
        return found

    def _perform(self, fallback: str, until: type[Exception] | tuple[()] = ()) -> Run:
        def called(play: Play) -> Any:
            made = FORMS[self.form](play)
            made.config.set_fallback(fallback)
            self.configure(made)
            return made

        return perform(self.make, called, until)

    def _check_words(self, told: list[str]) -> None:
        if self.says is not None:
            says = self.says if isinstance(self.says, tuple) else (self.says,) * bool(self.says)
            assert len(told) == len(says), told
            assert all(map(re.search, says, told)), told

    def _check_counts(self, found: Run) -> None:
        held = len(support.replays(found.called))
        counts = {"served": found.served, "recorded": found.recorded, "programs": held}
        for name, count in counts.items():
            wanted = getattr(self, name)
            assert wanted in (None, count), f"{name}: {count}, not {wanted}"
        assert found.served >= self.least, f"programs served {found.served} calls"
        unheard = not any(isinstance(one, WORDS) for one in found.told)
        assert found.served or self.served == 0 or not unheard, "no program, and no warning"
        assert found.last or not self.serves, found.told


OFTEN = 8


class Table(list[Any]):
    """Cases as parameters of a test; the expectations that they have in common are given once.

    A play that runs in two forms seldom fails in one of them alone, and ``tg.step``, which looks
    for all that a step may reach, takes several times as long: the form is slow there but for every
    eighth play. A play of one form, or with a fault, always runs in it.
    """

    def __init__(self, forms: str = "step", **common: Any) -> None:
        super().__init__()
        self._forms, self._common, self._both = forms, common, 0

    def __call__(
        self,
        make: Callable[[], Play] | None = None,
        *,
        forms: str = "",
        fault: str = "",
        slow: bool = False,
        name: str = "",
        **expected: Any,
    ) -> Any:
        """Decorator of the function that makes the play.

        Args:
            forms: names of `FORMS`, if they are not those of the table.
            fault: of torchgraph, known and not yet mended.
            slow: left to `make test-all`; other plays show the same mechanisms in less time.
            name: that of the play, if the function has no good one.
            expected: fields of `Case`.
        """
        if make is None:
            return partial(self, forms=forms, fault=fault, slow=slow, name=name, **expected)
        several = (forms or self._forms).split()
        seldom = not (slow or fault or len(several) == 1) and self._is_seldom()
        for form in several:
            marks = [pytest.mark.xfail(strict=True, reason=fault)] if fault else []
            if slow or (seldom and form == "step"):
                marks.append(pytest.mark.slow)
            case = Case(make, form, **{**self._common, **expected})
            self.append(pytest.param(case, id=f"{name or make.__name__}-{form}", marks=marks))
        return make

    def rows(self, plays: Mapping[str, Callable[[], Play]], **expected: Any) -> None:
        """Plays by name, each made by one expression; all have the same keywords."""
        for name, make in plays.items():
            self(make, name=name, **expected)

    def _is_seldom(self) -> bool:
        """Whether the form ``tg.step`` of one more play of two is left to `make test-all`."""
        self._both += 1
        return self._both % OFTEN != 1
