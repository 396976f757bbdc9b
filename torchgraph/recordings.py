"""Calls that no program serves yet: they run as eager runs them, are written down and confirmed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from .cache import ProgramCache
from .capture.inputs import Call
from .capture.step import Step
from .confirm import Start, unlike
from .errors import (
    AttributeReadAndWritten,
    ConfirmWarning,
    EagerWarning,
    GraphError,
    MovingConstant,
    StepMoves,
    warn,
)
from .options import Options
from .record.compare import Difference, Kind, difference
from .record.outcome import Outcome
from .record.watch import warn_written
from .replay.replay import Replay

_PATIENCE = 4
"""Recordings in a row that are not the same before a step counts as one that never settles."""


@dataclass(eq=False)
class _Draft:
    """A recording that waits to be confirmed."""

    outcome: Outcome
    replay: Replay | None
    digest: tuple[float, ...] = ()


@dataclass
class _Signature:
    """What is known about the calls of one key."""

    drafts: list[_Draft] = field(default_factory=list)
    restless: int = 0
    """Recordings in a row that matched none before them."""
    restless_constants: int = 0
    last: Difference | None = None
    refused: GraphError | None = None
    """Raised by the next call, before anything runs."""
    eager: str = ""
    """Why its calls run in eager for good."""


class Recordings:
    """Of one Graph.

    Args:
        take: runs a call as eager runs it; heard or not.
        compile: makes a program of what a call left.
    """

    def __init__(
        self,
        cache: ProgramCache,
        take: Callable[[Step, Call, bool], Outcome],
        compile: Callable[[Outcome, Call], Replay],
    ) -> None:
        self._cache = cache
        self._take = take
        self._compile = compile
        self._signatures: dict[Hashable, _Signature] = {}
        self.eager_calls = 0
        self._warned: set[str] = set()

    def clear(self) -> None:
        """Forget everything."""
        self._signatures.clear()

    def call(self, key: Any, step: Step, call: Call, options: Options) -> Outcome:
        """Run a call that no program serves, and learn from it.

        Raises:
            CaptureError and its kin: the step can be no static program; nothing has changed. What
                was found too late to take a step back is raised by the next call instead.
        """
        known = self._signatures.setdefault(key, _Signature())
        if known.refused is not None and not self._cache.holds(key):
            raise known.refused.with_traceback(None)
        if known.eager or known.refused is not None:
            return self._in_eager(step, call)
        replays = [draft.replay for draft in known.drafts if draft.replay is not None]
        start = Start.of(step, call, replays)
        outcome = self._take(step, call, True)
        if outcome.stepped:
            self._learn(key, known, call, start, outcome, options)
        return outcome

    def alone(self, step: Step, call: Call) -> Outcome:
        """Run a call of which nothing is learnt."""
        return self._in_eager(step, call)

    def _in_eager(self, step: Step, call: Call) -> Outcome:
        self.eager_calls += 1
        return self._take(step, call, False)

    def _learn(
        self,
        key: Any,
        known: _Signature,
        call: Call,
        start: Start,
        outcome: Outcome,
        options: Options,
    ) -> None:
        if not known.drafts:
            self._warn_of_writes(outcome)
        found = [(draft, difference(draft.outcome, outcome)) for draft in known.drafts]
        same = next((draft for draft, apart in found if apart is None), None)
        if same is None:
            self._draft(key, known, call, start, outcome, options, found[0][1] if found else None)
        elif same.replay is not None and not _is_weak(same, start):
            known.restless = known.restless_constants = 0
            self._confirm(key, known, same, same.replay, call, start, outcome, options)

    def _draft(
        self,
        key: Any,
        known: _Signature,
        call: Call,
        start: Start,
        outcome: Outcome,
        options: Options,
        apart: Difference | None,
    ) -> None:
        known.last = apart
        if apart is not None and apart.kind is not Kind.VALUE:
            known.restless += 1
            known.restless_constants += apart.kind in (Kind.CONSTANT, Kind.TENSOR, Kind.OUTPUT)
        if known.restless >= _PATIENCE or known.restless_constants >= 2:
            self._give_up(key, known)
            return
        replay = None
        if outcome.settled:
            try:
                replay = self._compile(outcome, call)
            except GraphError as error:
                self._refuse(key, known, error)
                return
        known.drafts.insert(0, _Draft(outcome, replay, start.digest))
        del known.drafts[options.cache_size :]

    def _confirm(
        self,
        key: Any,
        known: _Signature,
        draft: _Draft,
        replay: Replay,
        call: Call,
        start: Start,
        outcome: Outcome,
        options: Options,
    ) -> None:
        known.drafts.remove(draft)
        if not replay.refit(outcome.step):  # to the tensors that are there now
            replay = self._compile(outcome, call)
        wrong = unlike(replay, start, call, outcome)
        if wrong:
            known.eager = f"its program does not compute what eager does: {wrong}"
            warn(
                f"The program of this step is not confirmed: {wrong}. This is a fault of torchgraph: "
                "please report it. The step goes on in eager.",
                ConfirmWarning,
            )
            return
        self._cache.add(key, replay, options.cache_size)

    def _give_up(self, key: Any, known: _Signature) -> None:
        apart = known.last
        assert apart is not None
        kind: type[GraphError] = StepMoves
        if apart.kind is Kind.ATTRIBUTE:
            kind = AttributeReadAndWritten
        elif apart.kind in (Kind.CONSTANT, Kind.TENSOR, Kind.OUTPUT):
            kind = MovingConstant
        self._refuse(key, known, kind(f"From call to call, {apart.what}.", where=apart.where))

    def _refuse(self, key: Any, known: _Signature, error: GraphError) -> None:
        known.refused = error
        known.drafts.clear()
        if self._cache.holds(key):
            warn(f"Some calls run in eager: {error}", EagerWarning)

    def _warn_of_writes(self, outcome: Outcome) -> None:
        written = [change for change in outcome.changes if not change.read]
        if written:
            warn_written(written)


def _is_weak(draft: _Draft, start: Start) -> bool:
    """True where two equal recordings say little: the same batch, and constants among the ops."""
    return False and draft.digest == start.digest and bool(draft.outcome.tape.constants)
