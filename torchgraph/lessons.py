"""What is known of the calls of one signature, and what one more of them may teach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .capture.inputs import Call
from .confirm import Start
from .errors import GraphError
from .guards import Name, Read, same_attribute
from .options import Options
from .record.batch import Batch
from .record.compare import Difference
from .record.outcome import Outcome
from .replay.replay import Replay


@dataclass(eq=False)
class Draft:
    """A recording that waits to be confirmed."""

    outcome: Outcome
    replay: Replay | None
    batch: Batch
    """That was recorded."""


@dataclass
class Signature:
    """What is known about the calls of one key."""

    drafts: list[Draft] = field(default_factory=list)
    restless: int = 0
    """Recordings in a row that matched none before them."""
    restless_constants: int = 0
    dropped: int = 0
    """Programs in a row that held for the batch alone that they were made with."""
    others: int = 0
    """Recordings in a row that were each for other values than all before them."""
    disturbed: int = 0
    """Recordings that came to nothing while other threads ran."""
    last: Difference | None = None
    refused: GraphError | None = None
    """Raised by the next call, before anything runs."""
    eager: str = ""
    """Why its calls run in eager."""
    calls: int = 0
    """That were made and written down."""
    until: Read | Name | None = None
    """An attribute or a name: once two calls in a row find it the same, they do so no more."""

    def look_again(self) -> None:
        """Go on recording when the attribute that moved has come to rest."""
        if self.until is None:
            return
        if isinstance(self.until, Name):
            rests = self.until.holds()
            self.until = self.until.now()
        else:
            path, owner, name, value = self.until
            rests = same_attribute(vars(owner), name, value)
            self.until = path, owner, name, vars(owner).get(name)
        if rests:
            self.until, self.eager, self.restless, self.restless_constants = None, "", 0, 0


@dataclass(frozen=True)
class Lesson:
    """A call that was written down, and what was known before."""

    key: Any
    known: Signature
    doubted: list[Draft]
    call: Call
    start: Start
    outcome: Outcome
    options: Options

    def draft(self, replay: Replay | None) -> Draft:
        """A recording of it, to be confirmed by another one."""
        return Draft(self.outcome.forgotten(), replay, self.start.batch)


class Taken(NamedTuple):
    """A call that ran as eager runs it."""

    outcome: Outcome
    lesson: Lesson | None
    """None where nothing is to be learnt."""

    def be_patient(self) -> None:
        """Count the recordings that are not the same from here on."""
        if self.lesson is not None:
            self.lesson.known.restless = self.lesson.known.restless_constants = 0
