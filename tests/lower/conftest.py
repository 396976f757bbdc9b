"""Regions without a compiler: each runs as the ATen ops that it consists of."""

from typing import Any, ClassVar

import pytest

from tests.lower.any_layout import AnyLayout
from torchgraph.replay import switch


class Interpretation:
    """Stands in for a Compilation."""

    made: ClassVar[list["Interpretation"]] = []

    status = "nothing"
    seconds: ClassVar[dict[str, float]] = {}

    def __init__(self, name: str, regions: Any, cache: Any, *, eager_draws: bool) -> None:
        self.regions = regions
        self.eager_draws = eager_draws
        self.made.append(self)

    def start(self, *, waits: bool = False, ahead: bool = False) -> None:
        """There is nothing to start."""

    def go_on(self) -> None:
        """Nor to go on with."""

    def pause(self) -> None:
        """Nothing runs that could be paused."""

    resume = pause

    is_done = True
    is_stale = False

    def finish(self, limit: float | None = None, goes_on: Any = None) -> None:
        for region in self.regions:
            region.compiled(region.gm)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[Interpretation]:
    """The compilations of the test, newest last."""
    monkeypatch.setattr(switch, "Compilation", Interpretation)
    monkeypatch.setattr(Interpretation, "made", [])
    return Interpretation.made


class InAnyLayout(Interpretation):
    """Interprets regions with every value laid out otherwise than in eager."""

    def finish(self, limit: float | None = None, goes_on: Any = None) -> None:
        for region in self.regions:
            region.compiled(AnyLayout(region.gm).run)


@pytest.fixture
def in_any_layout(monkeypatch: pytest.MonkeyPatch) -> list[Interpretation]:
    """The compilations of the test, newest last."""
    monkeypatch.setattr(switch, "Compilation", InAnyLayout)
    monkeypatch.setattr(Interpretation, "made", [])
    return Interpretation.made
