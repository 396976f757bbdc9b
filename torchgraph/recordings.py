"""Calls that no program serves yet: they run as eager runs them, are written down and confirmed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ._torch import storage_id
from .cache import ProgramCache
from .capture.inputs import Call
from .capture.step import Step
from .confirm import Start, as_eager, digest, unlike
from .errors import (
    AttributeReadAndWritten,
    ConfirmWarning,
    EagerWarning,
    GraphError,
    MovingConstant,
    warn,
)
from .options import Options
from .program import Role
from .record.compare import Difference, Kind, difference
from .record.outcome import Outcome
from .record.watch import warn_written
from .replay.replay import Replay

_PATIENCE = 4
"""Recordings in a row that are not the same before a step counts as one that never settles."""

_SIGNATURES = 4
"""How many signatures are remembered for each program that the cache holds."""


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
    others: int = 0
    """Recordings in a row that were each for other values than all before them."""
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
        self._doubted: WeakKeyDictionary[Replay, tuple[_Signature, _Draft]] = WeakKeyDictionary()

    def clear(self) -> None:
        """Forget everything."""
        self._signatures.clear()
        self._doubted.clear()

    def call(self, key: Any, step: Step, call: Call, options: Options) -> Outcome:
        """Run a call that no program serves, and learn from it.

        Raises:
            CaptureError and its kin: the step can be no static program; nothing has changed. What
                was found too late to take a step back is raised by the next call instead.
        """
        known = self._signature(key, options)
        if known.refused is not None and not self._cache.holds(key):
            raise known.refused.with_traceback(None)
        unlike_others = step.shares_memory(call.tensors)
        if known.eager or known.refused is not None or unlike_others:
            return self.alone(step, call)
        replays = [draft.replay for draft in known.drafts if draft.replay is not None]
        start = Start.of(step, call, replays)
        outcome = self._take(step, call, True)
        if outcome.stepped:
            self._learn(key, known, call, start, outcome, options)
        return outcome

    def _signature(self, key: Any, options: Options) -> _Signature:
        """The least recently used go first: a value that moves is a new signature each time."""
        known = self._signatures.pop(key, _Signature())
        self._signatures[key] = known
        while len(self._signatures) > _SIGNATURES * options.cache_size:
            del self._signatures[next(iter(self._signatures))]
        return known

    def alone(self, step: Step, call: Call) -> Outcome:
        """Run a call of which nothing is learnt."""
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
        if known.drafts and outcome.moved:
            self._stay_eager(
                known,
                f"{outcome.moved} moves in the optimizer's own step, which may go by it. A number "
                "that is kept in optimizer.state or in a param group may move",
            )
            return
        found = [(draft, difference(draft.outcome, outcome)) for draft in known.drafts]
        same = next((draft for draft, apart in found if apart is None), None)
        if same is None:
            self._draft(key, known, call, start, outcome, options, found[0][1] if found else None)
        elif same.replay is not None:
            known.restless = known.restless_constants = known.others = 0
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
        if apart is not None:
            known.others += apart.kind is Kind.VALUE
            known.restless += apart.kind is not Kind.VALUE
            known.restless_constants += apart.kind in (Kind.CONSTANT, Kind.TENSOR, Kind.OUTPUT)
        restless = known.restless >= _PATIENCE or known.restless_constants >= 2
        if restless or known.others >= options.cache_size:
            self._give_up(key, known)
            return
        replay = None
        if outcome.settled:
            try:
                replay = self._compile(outcome, call)
            except GraphError as error:
                self._refuse(key, known, error)
                return
            except Exception as error:  # eager computes the same: whatever it is, it goes on
                self._stay_eager(known, f"no program can be made of it: {error!r}")
                return
        known.drafts.insert(0, _Draft(outcome.forgotten(), replay, start.digest))
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
        self._warn_of_writes(outcome)
        if not replay.refit(outcome.after):  # the tensors that are there now
            try:
                replay = self._compile(outcome, call)
            except Exception as error:  # eager has made the step
                self._stay_eager(known, f"no program can be made of it: {error!r}")
                return
            if not replay.refit(outcome.after):
                known.drafts.insert(0, _Draft(outcome.forgotten(), replay, start.digest))
                return
        try:
            wrong = unlike(as_eager(replay, options), start, call, outcome)
        except Exception as error:  # eager has made the step: whatever it is, that stands
            wrong = f"it fails with {type(error).__name__}: {error}"
        if wrong:
            known.eager = f"its program does not compute what eager does: {wrong}"
            warn(
                f"The program of this step is not confirmed: {wrong}. This is a fault of "
                "torchgraph: please report it. The step goes on in eager.",
                ConfirmWarning,
            )
            return
        self._cache.add(key, replay, options.cache_size)
        if _is_weak(draft, start, outcome):
            draft.replay = None  # nobody but the cache keeps a program alive
            self._doubted[replay] = (known, draft)

    def doubts(self, replay: Replay, call: Call) -> bool:
        """True when a program was confirmed by the very batch that it was recorded with.

        Then its constants may be of that batch: the first other batch is recorded once more.
        """
        known, draft = self._doubted.get(replay, (None, None))
        if known is None or draft is None or digest(call) == draft.digest:
            return False
        del self._doubted[replay]
        self._cache.remove(replay)
        known.drafts.insert(0, draft)
        draft.replay = replay
        return True

    def _stay_eager(self, known: _Signature, why: str) -> None:
        known.eager = why
        known.drafts.clear()
        warn(f"The step runs in eager: {why}.", EagerWarning)

    def _give_up(self, key: Any, known: _Signature) -> None:
        apart = known.last
        assert apart is not None
        at = f" (at {apart.where})" if apart.where else ""
        if apart.kind in (Kind.STRUCTURE, Kind.STATE):
            self._stay_eager(known, f"it is not the same from call to call, {apart.what}{at}")
            return
        if apart.kind is Kind.VALUE:
            calls = f"in each of {known.others} calls: compute with the tensor, or return it"
            self._stay_eager(known, f"{apart.what}{at}, {calls}")
            return
        kind: type[GraphError] = MovingConstant
        if apart.kind is Kind.ATTRIBUTE:
            kind = AttributeReadAndWritten
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


def _is_weak(draft: _Draft, start: Start, outcome: Outcome) -> bool:
    """True where two equal recordings say little: the same batch, and constants among the ops."""
    pairs = zip(draft.outcome.leaves, outcome.leaves, strict=True)
    others = any(
        one.role is Role.FREE and storage_id(one.value) != storage_id(other.value)
        for (one, _), (other, _) in pairs
    )
    constants = others or bool(outcome.tape.constants)
    return constants and bool(start.digest) and draft.digest == start.digest
