"""The history of the calls of one signature, and a recorded call with its history."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import GraphError
from ..guards import Name, Read, same_attribute
from ..live.inputs import Call
from ..options.options import Options
from ..reasons import Reason
from ..record.compare.compare import Difference, difference
from ..record.compare.outcome import Outcome
from ..replay.replay import Replay
from ..verify.batch import Batch
from ..verify.confirm import Start

PATIENCE = 4
"""Recordings in a row that are not the same before a step counts as one that never settles."""
_AGAIN = PATIENCE - 2
"""Recordings that count as made when a step that was given up is recorded once more."""
_FIRST_WAIT = 64
"""Calls in eager before the next recording of a varying value; doubled each time."""


_OFTEN = 16
"""After this many calls in eager, a varying value is compared in 2 of every 16 calls only."""

_OTHER_START = "gradients, or tensors that it keeps, are there that were not, or are gone"
"""Why programs do not serve a call whose recording is that of one of them."""
MOST_AGAIN = 3
"""Calls repeated with plain numbers, after which calls of the signature run in eager."""
_WORTH = 4
"""Calls that programs have to serve for each recording: it takes longer than eager does."""


@dataclass(eq=False)
class Draft:
    """A recording that waits to be confirmed."""

    outcome: Outcome
    replay: Replay | None
    batch: Batch
    """The batch that was recorded."""


class State(enum.Enum):
    """What becomes of a call of a signature that no program fits at the moment."""

    RECORDING = "recording"
    """It is recorded, for a first program or for another variant."""
    EAGER = "eager"
    """It runs in eager for the reason `eager`, until `look_again` ends that."""
    REFUSED = "refused"
    """It raises `SignatureState.refused`, or becomes one that stays in eager."""


@dataclass
class SignatureState:
    """The state of one signature: its recordings, counts, and why it stays in eager.

    `stay_eager`, `rest`, `look_again` and `Recordings._refuse` alone change `state`.
    """

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
    plain: str = ""
    """Why a call had to be repeated with plain numbers."""
    made_again: int = 0
    """Calls that were repeated with plain numbers."""
    serves: str = ""
    """A description of its arguments, once a call has run."""
    number: int = 0
    """Its number in the order of first calls; 0 before its first."""
    calls: int = 0
    """Calls that were recorded."""
    until: Read | Name | None = None
    """An attribute or a name: eager ends once two calls in a row find it unchanged."""
    idle: int = 0
    """Recordings since programs last served more than a few calls for each."""
    latest: Outcome | None = None
    """The outcome that the last program was made from, where programs rarely serve."""
    served: bool = False
    """True once a program has served a call."""
    _runs: WeakKeyDictionary[Replay, int] = field(default_factory=WeakKeyDictionary)
    """Runs of each program up to the last recording."""
    _since_eager: int = 0
    """Calls since it runs in eager for what may come to rest."""
    _waits: int = 0
    """Calls that are still to run in eager before the next is recorded; 0 for all."""
    _wait: int = _FIRST_WAIT

    @property
    def state(self) -> State:
        """What becomes of its next call that no program fits."""
        if self.eager:
            return State.EAGER
        if self.refused is not None:
            return State.REFUSED
        return State.RECORDING

    def confirmed(self, replay: Replay) -> None:
        """Note a program that may serve from now on."""
        self._runs.setdefault(replay, replay.runs)

    def recorded(self) -> None:
        """Count a recording."""
        self.calls += 1
        served = sum(replay.runs - runs for replay, runs in self._runs.items())
        self.served = self.served or served > 0
        self.idle = max(self.idle - served // _WORTH, 0) + 1
        self._runs.update({replay: replay.runs for replay in self._runs})

    def unlike(self, apart: Difference | None) -> None:
        """Count a recording that matches none before it."""
        self.last = apart
        if apart is not None:
            self.others += apart.is_of_state
            self.restless += not apart.is_of_state
            self.restless_constants += apart.never_settles

    def stay_eager(
        self, why: str, *, later: bool = False, until: Read | Name | None = None
    ) -> None:
        """Let calls run in eager: for good, or until the next try.

        Args:
            later: until so many calls have run, twice as many each time.
            until: until two calls in a row find this unchanged.
        """
        self.eager, self.until = why, until
        self.drafts.clear()
        if later:
            self._wait_longer()

    def rest(self, why: str) -> None:
        """Let calls that no program serves run in eager for a while."""
        self.eager, self.disturbed = why, 0
        self._wait_longer()

    def _wait_longer(self) -> None:
        self._waits, self._wait = self._wait, 2 * self._wait

    def stays_eager(self, raises: bool) -> bool:
        """True for a call that stays in eager and need not be bound.

        ``raises``: a step that no program can hold is an error.
        """
        if not (self.eager and self.serves) or (raises and self.refused is not None):
            return False
        self.look_again()
        return bool(self.eager)

    def look_again(self) -> None:
        """Resume recording when a varying value is constant, or the wait is over."""
        if self.eager and self._waits:
            self._waits -= 1
            if not self._waits:
                self.eager, self.others, self.idle = "", 0, 0
                self.restless, self.restless_constants = min(self.restless, _AGAIN), 0
        self._since_eager += 1
        if self.until is None or (self._since_eager > _OFTEN and self._since_eager % _OFTEN > 1):
            return
        if isinstance(self.until, Name):
            rests = self.until.holds()
            self.until = self.until.now()
        else:
            path, owner, name, value = self.until
            rests = same_attribute(vars(owner), name, value)
            self.until = path, owner, name, vars(owner).get(name)
        if rests:
            self._since_eager = 0
            self.until, self.eager, self.restless, self.restless_constants = None, "", 0, 0


class VaryingValues:
    """Lines that read a value from data which varies by call, over all signatures."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """Differences of a number, by line."""
        self._known: set[str] = set()

    def clear(self) -> None:
        """Forget them."""
        self._counts.clear()
        self._known.clear()

    def holds(self, apart: Difference | None, size: int) -> bool:
        """Count a difference; True where it is at a line whose value varies."""
        if apart is None or apart.reason is not Reason.DATA:
            return False
        self._counts[apart.at] += apart.varies
        return apart.at in self._known or self._counts[apart.at] >= size

    def add(self, apart: Difference) -> None:
        """A signature was given up for ``apart``."""
        if apart.reason is Reason.DATA and apart.where is not None:
            self._known.add(apart.at)

    def came_back(self, outcome: Outcome) -> None:
        """A recording matched: the values that its lines read do not vary any more."""
        for one in outcome.tape.expectations:
            at = f" (at {one.provenance.line})"
            self._known.discard(at)
            self._counts.pop(at, None)


@dataclass(frozen=True)
class RecordedCall:
    """A recorded call, and the state of its signature before it."""

    key: Any
    known: SignatureState
    weak: list[Draft]
    call: Call
    start: Start
    outcome: Outcome
    options: Options
    why_not: str
    """Why a program of its signature did not serve the call."""
    moved: str
    """The argument that differs from the previously recorded call."""

    def why_idle(self, apart: Difference | None) -> str:
        """Why programs serve few calls or none, where ``apart`` is not the reason."""
        why, latest = self.why_not, self.known.latest
        if not why and apart is None and latest is not None:
            other = difference(latest, self.outcome)
            why = _OTHER_START if other is None else f"{other.what}{other.at}"
        served = "its programs serve few later calls"
        served = served if self.known.served else "none of its programs serves a later call"
        return why and f"{served}: {why}"

    @property
    def idles(self) -> bool:
        """True where programs are compiled repeatedly, and none of them serves."""
        return self.known.idle >= 2 * max(self.options.cache_size, PATIENCE)

    def draft(self, replay: Replay | None, outcome: Outcome | None = None) -> Draft:
        """A draft of this recording, or of ``outcome``, to be confirmed by another call."""
        return Draft((outcome or self.outcome).forgotten(), replay, self.start.batch)


class Taken(NamedTuple):
    """A call that ran as eager runs it."""

    outcome: Outcome
    recorded_call: RecordedCall | None
    """None for a call that was not recorded."""

    def be_patient(self) -> None:
        """Restart the count of recordings that match none before them."""
        if self.recorded_call is not None:
            self.recorded_call.known.restless = self.recorded_call.known.restless_constants = 0


def words(error: Exception) -> str:
    """``TypeError: message``."""
    return f"{type(error).__name__}: {error}"
